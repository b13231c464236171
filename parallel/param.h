/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters, described once: parallel layers, ZeRO, checkpoints and interchange all read this.
 *
 * A *storage* is what kernels see: one matrix or vector of this rank, at an offset of the flat buffers
 * (weights, gradients, both moments share one layout, so a storage is a range of each). A *parameter* is a
 * rectangle of a named tensor as Hugging Face knows it, which is a rectangle of one storage. A fused QKV
 * projection is one storage with three parameters; a tied weight is one parameter used twice. Sharding over
 * the tensor-parallel group is part of the parameter: start and count are what this rank holds. Where a
 * shard of one name is not a rectangle (GPT-2's c_attn: columns of q, of k and of v), each is a parameter:
 * part 0, 1, 2 of that name. */
#ifndef FX_PARALLEL_PARAM_H
#define FX_PARALLEL_PARAM_H

#include <stdbool.h>
#include <stdint.h>

#include "dynamo_rt/base/status.h"
#include "dynamo_rt/device/device.h"
#include "dynamo_rt/tensor/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fx_init_kind { FX_INIT_ZEROS, FX_INIT_ONES, FX_INIT_NORMAL, FX_INIT_CONSTANT } fx_init_kind;

/* X(name): what the ranks of a tensor-parallel group hold of a storage, and so what its gradient is there.
 * SHARDED     each its own part. SHARED_HEADS  key heads that `fx_topology.kv` ranks share: partial sums over
 * them. REPLICATED  the same everywhere, read by rows of a sequence shard: under sequence parallelism partial
 * sums over tp, else complete. PARTIAL  the same everywhere, partial sums over tp in any case. */
#define FX_PARAM_GROUP_LIST(X) X(SHARDED) X(SHARED_HEADS) X(REPLICATED) X(PARTIAL)
typedef enum fx_param_group {
#define FX_PARAM_GROUP_ENUM(name) FX_GROUP_##name,
  FX_PARAM_GROUP_LIST(FX_PARAM_GROUP_ENUM)
#undef FX_PARAM_GROUP_ENUM
      FX_GROUP_COUNT
} fx_param_group;

typedef struct fx_param {
  char name[120];   /* Hugging Face name, e.g. "model.layers.0.self_attn.q_proj.weight" */
  int ndim;         /* 1 or 2 */
  int part;         /* of this name on this rank, from 0 */
  int64_t dim[2];   /* global shape, padding trimmed */
  int64_t start[2]; /* this rank's part of the global tensor; count may be 0 (all of it is padding here) */
  int64_t count[2];
  int32_t storage;
  int64_t row, col; /* where it begins inside the storage; col is 0 where ndim is 1 */
  bool owner;       /* of the tp ranks that hold this part this one counts it in norms and saves it */
  fx_init_kind init;
  double init_std; /* FX_INIT_NORMAL; the value of FX_INIT_CONSTANT */
} fx_param;

typedef struct fx_param_storage {
  fx_type type;   /* float32 [rows, cols] or [n]; the local part, padding included */
  int64_t offset; /* elements from the start of the flat buffers; a multiple of 16 (64 bytes) */
  bool decay;     /* weight decay applies (matrices) */
  fx_param_group group;
  bool compute; /* kernels of the model read it in the compute type: matrices, their biases */
} fx_param_storage;

/* Storages that decay, that kernels read in the compute type and that tensor-parallel ranks do not share come
 * first in the flat layout, in buckets:
 * what data-parallel collectives carry at a time, and what ZeRO cuts (zero.h). */
enum { FX_BUCKET_STORAGES = 9 }; /* in a bucket at most */
typedef struct fx_param_bucket {
  int64_t begin, end; /* of the flat layout: whole storages, then padding to a multiple of 16 a rank */
  int64_t place;      /* where it would begin without that padding, which is the same in every layout */
} fx_param_bucket;

typedef struct fx_params {
  fx_param *param;
  int64_t num_params, param_capacity;
  fx_param_storage *storage;
  int64_t num_storages, storage_capacity;
  int64_t numel; /* elements of each flat buffer; [0, num_decay) decays */
  int64_t num_decay;
  fx_param_bucket *bucket;
  int64_t num_buckets, bucket_capacity;
  int64_t bucket_elements;  /* set before fx_params_allocate: of a bucket, about; 0: the default */
  int zero;                 /* set before fx_params_allocate, as the next two: the stage of ZeRO, 0: none */
  int zero_rank, zero_size; /* this rank among those that share the state; zero_size 0: alone */
  int64_t num_sharded;      /* elements [0, num_sharded) lie in buckets */
  int64_t num_padding;      /* among them, of buckets */
  int64_t num_own;          /* elements of the buffers of this rank's state; numel without ZeRO */
  /* Behind the buckets, what decays (0) and the rest (1) are laid out group by group: group g of part p is
   * [group_begin[p][g], group_begin[p][g + 1]). Buckets hold FX_GROUP_SHARDED alone. */
  int64_t group_begin[2][FX_GROUP_COUNT + 1];
  bool dry;       /* set before fx_params_allocate: the buffers are addresses without memory, for plans that
                     are made to be looked at */
  void *reserved; /* of a dry allocation, owned */
  size_t reserved_bytes, reserved_used;
  bool weights_only; /* set before fx_params_allocate: grad and both moments stay NULL (generation) */
  fx_device *device; /* set before fx_params_allocate: the buffers are memory of this device; NULL: plain
                        memory of the host */
  fx_dtype dtype;    /* set before fx_params_allocate: FX_BF16 adds the compute copy; else FX_F32 (0) */
  float *weight, *grad, *exp_avg,
      *exp_avg_sq;   /* flat buffers, owned; fp32 masters. Under ZeRO packed,
[num_own]; but weight stays [numel] where kernels read it, that is without `compute` */
  float *grad_whole; /* ZeRO 1: [num_sharded], this rank's gradients before they are summed; else NULL */
  uint16_t *compute; /* bfloat16 copy of the weights in the same layout, or NULL; who changes weights sees to
                        it: adamw, and a plan that casts them after they were filled */
} fx_params;

/* Declares a storage of `type`; *index is its number. */
fx_status fx_params_add_storage(fx_params *params, fx_type type, bool decay, int32_t *index);
/* Declares a whole tensor that lies at `row` of a storage, owned by this rank. */
fx_status fx_params_add(fx_params *params, const char *name, int32_t storage, int64_t row, int ndim,
                        const int64_t *dim, fx_init_kind init, double init_std);
/* Declares a part as described; those of one name in order, from part 0. */
fx_status fx_params_add_part(fx_params *params, const fx_param *part);
/* Lays storages out (those in buckets first, then others that decay, then the rest; group by group; inside a
 * group in reverse order of declaration, so that gradients become ready from the front), allocates the zeroed
 * buffers. */
fx_status fx_params_allocate(fx_params *params);
/* Fills the weights: element i of a normal parameter is drawn by Philox(seed, name, its global index), so any
 * layout starts from the same numbers. */
fx_status fx_params_initialize(fx_params *params, uint64_t seed);
/* Copies all of a flat fp32 buffer to or from floats of the host (num_own of them but for whole weights,
 * numel); returns when it is done. */
fx_status fx_params_download(const fx_params *params, const float *flat, float *host);
fx_status fx_params_upload(const fx_params *params, float *flat, const float *host);
/* Whether the host may read and write the flat buffers itself. */
bool fx_params_on_host(const fx_params *params);
void fx_params_fini(fx_params *params);

/* Address of a parameter's local part in one of the whole flat buffers, the same in elements, and the
 * elements from one of its rows to the next. */
float *fx_param_data(const fx_params *params, const fx_param *param, float *flat);
int64_t fx_param_offset(const fx_params *params, const fx_param *param);
int64_t fx_param_pitch(const fx_params *params, const fx_param *param);
int64_t fx_param_numel(const fx_param *param);                             /* local */
const fx_param *fx_params_find(const fx_params *params, const char *name); /* part 0; NULL when absent */

#ifdef __cplusplus
}
#endif
#endif
