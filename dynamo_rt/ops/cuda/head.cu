/* SPDX-License-Identifier: Apache-2.0 */
/* Cross-entropy on the logits of one chunk of rows: a block a row, which becomes its own gradient in place. A
 * row that fits shared memory is read once and written once. */

enum { BLOCK = 512 };

struct row_loss {
  const float *factor;
  float *nll;
  i64 vocab, valid; /* columns, and those of them that count */
  int grad;
};

/* A running maximum and the sum of exp(x - maximum). */
struct tally {
  float most, sum;
};

__device__ inline float low_limit() {
  return -3.0e38f; /* below every logit, and of a finite difference from itself */
}

__device__ inline tally block_tally(tally t) {
  float most = block_max(t.most);
  float sum = block_sum(t.sum * exponential(t.most - most));
  return {most, sum};
}

/* Columns [col, col + VEC) of a row; those from `valid` on do not count. */
__device__ inline void add_vector(tally &t, uint4 in, i64 col, i64 valid) {
  float x[VEC];
  unpack(in, x);
  if (col + VEC > valid)
    for (int i = 0; i < VEC; i++)
      if (col + i >= valid) x[i] = low_limit();
  float most = t.most;
  for (int i = 0; i < VEC; i++) most = fmaxf(most, x[i]);
  float sum = t.sum * exponential(t.most - most);
  for (int i = 0; i < VEC; i++) sum += exponential(x[i] - most);
  t = {most, sum};
}

/* factor (softmax - onehot) of the same columns */
__device__ inline void give_vector(T *row, uint4 in, i64 col, i64 valid, i64 target, float most, float scale,
                                   float factor) {
  float x[VEC];
  unpack(in, x);
  for (int i = 0; i < VEC; i++) x[i] = exponential(x[i] - most) * scale;
  if (col + VEC > valid)
    for (int i = 0; i < VEC; i++)
      if (col + i >= valid) x[i] = 0.0f;
  if ((u64)(target - col) < VEC)
    for (int i = 0; i < VEC; i++)
      if (col + i == target) x[i] -= factor;
  store_vector(row + col, x);
}

/* Asynchronous 16 bytes into shared memory. */
__device__ inline void fetch(void *to, const void *from) {
  u32 place = (u32)__cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(place), "l"(from) : "memory");
}

/* A thread's part of the first `valid` columns of a row. */
__device__ inline tally read_tally(const T *row, i64 valid) {
  enum { STAGES = 4 };
  i64 counted = (valid + VEC - 1) / VEC;
  tally t = {low_limit(), 0.0f};
  for (i64 first = threadIdx.x; first < counted; first += BLOCK * STAGES) {
    uint4 in[STAGES];
    for (int j = 0; j < STAGES; j++)
      if (first + j * BLOCK < counted) in[j] = load_vector(row + (first + j * BLOCK) * VEC);
    for (int j = 0; j < STAGES; j++)
      if (first + j * BLOCK < counted) add_vector(t, in[j], (first + j * BLOCK) * VEC, valid);
  }
  return t;
}

/* A thread fetches its own columns and reads back no others, so that no barrier is needed. `held`: the row
 * fits shared memory; else both passes read it. */
__device__ inline void row_of_vectors(const row_loss &l, T *row, i64 r, int target, bool held) {
  extern __shared__ uint4 copy[];
  i64 vectors = l.vocab / VEC, counted = (l.valid + VEC - 1) / VEC;
  float picked = get(row + target);
  tally t = {low_limit(), 0.0f};
  if (held) {
    for (i64 i = threadIdx.x; i < counted; i += BLOCK) {
      fetch(copy + i, row + i * VEC);
      asm volatile("cp.async.commit_group;" ::: "memory");
    }
    for (i64 i = threadIdx.x; i < counted; i += BLOCK) {
      i64 later = (counted - 1 - i) / BLOCK; /* groups of this thread behind this one */
      if (later >= 8)
        asm volatile("cp.async.wait_group 8;" ::: "memory");
      else if (later >= 4)
        asm volatile("cp.async.wait_group 4;" ::: "memory");
      else if (later >= 2)
        asm volatile("cp.async.wait_group 2;" ::: "memory");
      else
        asm volatile("cp.async.wait_group 0;" ::: "memory");
      add_vector(t, copy[i], i * VEC, l.valid);
    }
  } else {
    t = read_tally(row, l.valid);
  }
  t = block_tally(t); /* its barriers also keep `picked` before the writes below */
  if (threadIdx.x == 0) l.nll[r] = logf(t.sum) + (t.most - picked);
  if (!l.grad) return;
  float factor = *l.factor, scale = factor / t.sum;
  for (i64 i = threadIdx.x; i < counted; i += BLOCK)
    give_vector(row, held ? copy[i] : load_vector(row + i * VEC), i * VEC, l.valid, target, t.most, scale,
                factor);
  for (i64 i = counted + threadIdx.x; i < vectors; i += BLOCK)
    *(uint4 *)(row + i * VEC) = make_uint4(0, 0, 0, 0);
}

__device__ inline void row_of_elements(const row_loss &l, T *row, i64 r, int target) {
  float most = low_limit(), picked = get(row + target), sum = 0.0f;
  for (i64 i = threadIdx.x; i < l.valid; i += BLOCK) most = fmaxf(most, get(row + i));
  most = block_max(most);
  for (i64 i = threadIdx.x; i < l.valid; i += BLOCK) sum += exponential(get(row + i) - most);
  sum = block_sum(sum);
  if (threadIdx.x == 0) l.nll[r] = logf(sum) + (most - picked);
  if (!l.grad) return;
  float factor = *l.factor, scale = factor / sum;
  for (i64 i = threadIdx.x; i < l.vocab; i += BLOCK) {
    float p = i < l.valid ? exponential(get(row + i) - most) * scale : 0.0f;
    put(row + i, i == target ? p - factor : p);
  }
}

/* logits [rows, vocab]. nll [rows]; with grad the row becomes factor (softmax - onehot), zero in the padding
 * and in masked rows (target < 0). first_row: number of row 0 in the batch. */
KERNEL_RESIDENT(cross_entropy, BLOCK, 3)
(T *logits, const int *targets, row_loss l, i64 first_row, int vectors, int held, fault *report) {
  follow();
  i64 r = blockIdx.x;
  T *row = logits + r * l.vocab;
  int target = targets[r];
  if (target >= 0 && target < l.valid) {
    if (vectors) return row_of_vectors(l, row, r, target, held != 0);
    return row_of_elements(l, row, r, target);
  }
  if (target >= l.valid && threadIdx.x == 0) tell(report, FAULT_TARGET, target, first_row + r, l.valid);
  for (i64 i = threadIdx.x; l.grad && i < l.vocab; i += BLOCK) row[i] = 0;
  if (threadIdx.x == 0) l.nll[r] = 0.0f;
}

/* ---- of a rank that holds the columns of ids [first, first + cols), `counted` of them no padding ---- */

enum { NUMBER_MAX, NUMBER_SUM, NUMBER_PICKED, NUMBERS };

/* numbers [rows, NUMBERS]: maximum, sum of exp(logit - maximum), the target's logit (0: another rank has it)
 */
KERNEL(vocab_numbers, BLOCK)
(const T *logits, const int *targets, float *numbers, i64 cols, i64 counted, i64 first, i64 valid,
 int vectors, fault *report) {
  follow();
  i64 r = blockIdx.x, target = targets[r], place = target - first;
  const T *row = logits + r * cols;
  tally t = {low_limit(), 0.0f};
  if (vectors) {
    t = read_tally(row, counted);
  } else {
    for (i64 i = threadIdx.x; i < counted; i += BLOCK) t.most = fmaxf(t.most, get(row + i));
    for (i64 i = threadIdx.x; i < counted; i += BLOCK) t.sum += exponential(get(row + i) - t.most);
  }
  t = block_tally(t);
  if (threadIdx.x != 0) return;
  if (target >= valid) tell(report, FAULT_TARGET, (int)target, r, valid);
  float *mine = numbers + r * NUMBERS;
  mine[NUMBER_MAX] = t.most;
  mine[NUMBER_SUM] = t.sum;
  mine[NUMBER_PICKED] = target >= 0 && place >= 0 && place < counted ? get(row + place) : 0.0f;
}

/* nll from the numbers [ranks, rows, NUMBERS] of all ranks; with grad [rows, cols], which may be the logits,
 * factor (softmax - onehot), zero in the padding and in masked rows. */
KERNEL(vocab_merge, BLOCK)
(const T *logits, T *grad, const float *numbers, const int *targets, const float *factor, float *nll,
 i64 rows, i64 cols, i64 counted, i64 first, int ranks, int vectors) {
  follow();
  i64 r = blockIdx.x, target = targets[r], place = target - first;
  const T *row = logits + r * cols;
  T *out = grad + r * cols;
  if (target < 0) {
    for (i64 i = threadIdx.x; grad && i < cols; i += BLOCK) out[i] = 0;
    if (threadIdx.x == 0) nll[r] = 0.0f;
    return;
  }
  float most = low_limit(), sum = 0.0f, picked = 0.0f;
  for (int k = 0; k < ranks; k++) most = fmaxf(most, numbers[(k * rows + r) * NUMBERS + NUMBER_MAX]);
  for (int k = 0; k < ranks; k++) {
    const float *theirs = numbers + (k * rows + r) * NUMBERS;
    sum += theirs[NUMBER_SUM] * expf(theirs[NUMBER_MAX] - most);
    picked += theirs[NUMBER_PICKED];
  }
  if (threadIdx.x == 0) nll[r] = logf(sum) + (most - picked);
  if (!grad) return;
  float share = *factor, scale = share / sum;
  i64 whole = vectors ? (counted + VEC - 1) / VEC : 0;
  for (i64 i = threadIdx.x; i < whole; i += BLOCK)
    give_vector(out, load_vector(row + i * VEC), i * VEC, counted, place, most, scale, share);
  for (i64 i = whole * VEC + threadIdx.x; i < cols; i += BLOCK) {
    float p = i < counted ? exponential(get(row + i) - most) * scale : 0.0f;
    put(out + i, i == place ? p - share : p);
  }
}
