/* SPDX-License-Identifier: Apache-2.0 */
/* AdamW, eight elements a thread: one draw of Philox rounds as many. */

enum { EIGHT = 8 };

struct adamw_params {
  double beta1, beta2, eps, weight_decay;
  u64 seed;
  i64 first;
  int stochastic, reserved;
};

struct adamw_state {
  float *p, *m, *v;
};

struct factors {
  float grad, decay, beta1, beta2, step_size, bias2, eps;
};

__device__ inline void update(float &p, float g, float &m, float &v, const factors &f) {
  float grad = g * f.grad;
  m = m + (1.0f - f.beta1) * (grad - m);
  v = f.beta2 * v + (1.0f - f.beta2) * grad * grad;
  p = p * f.decay - f.step_size * (m / (sqrtf(v) * f.bias2 + f.eps));
}

/* bfloat16 bits of p: up with the probability of what is cut off, for 16 random bits; to nearest even without
 * them, and where p is not finite. */
__device__ inline u32 round_bf16(float p, u32 random, bool stochastic) {
  u32 bits = __float_as_uint(p);
  if (!stochastic || (bits & 0x7F800000u) == 0x7F800000u) return pack_bf16(p, 0.0f);
  return (bits + random) >> 16;
}

__device__ inline void read_eight(const float *from, i64 i, float (&x)[EIGHT]) {
  float4 a = *(const float4 *)(from + i), b = *(const float4 *)(from + i + 4);
  x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
}
__device__ inline void write_eight(float *to, i64 i, const float (&x)[EIGHT]) {
  *(float4 *)(to + i) = make_float4(x[0], x[1], x[2], x[3]);
  *(float4 *)(to + i + 4) = make_float4(x[4], x[5], x[6], x[7]);
}

__device__ inline void write_state(const adamw_state &to, i64 i, const float (&p)[EIGHT],
                                   const float (&m)[EIGHT], const float (&v)[EIGHT]) {
  write_eight(to.p, i, p);
  write_eight(to.m, i, m);
  write_eight(to.v, i, v);
}

__device__ inline void one_element(const adamw_state &s, const float *g, const adamw_state &copy,
                                   unsigned short *compute, bool finite, const factors &f,
                                   const adamw_params &a, u64 site, u64 step, i64 i) {
  float p = s.p[i], m = s.m[i], v = s.v[i];
  if (finite) {
    u64 index = (u64)(a.first + i);
    u32 random = a.stochastic ? philox_at(a.seed, site, index / EIGHT, step).word[index % EIGHT / 2] : 0;
    update(p, g[i], m, v, f);
    s.p[i] = p, s.m[i] = m, s.v[i] = v;
    if (compute)
      compute[i] =
          (unsigned short)round_bf16(p, index % 2 ? random >> 16 : random & 0xFFFFu, a.stochastic != 0);
  }
  if (copy.p) copy.p[i] = p, copy.m[i] = m, copy.v[i] = v;
}

/* A norm that is not finite leaves parameters, moments and the rounded copy as they were. copy: NULLs, or a
 * snapshot that gets the state after the step all the same. compute: NULL, or where the new parameters go
 * rounded to bfloat16. */
SINGLE_KERNEL(adamw, FLAT)
(adamw_state s, const float *g, const float *lr_in, const i64 *step_in, const float *norm,
 const float *factor, adamw_params a, u64 site, adamw_state copy, unsigned short *compute, i64 n) {
  follow();
  __shared__ float decay, step_size, bias2;
  u64 step = (u64)*step_in;
  if (threadIdx.x == 0) {
    double lr = (double)*lr_in;
    decay = (float)(1.0 - lr * a.weight_decay);
    step_size = (float)(lr / (1.0 - pow(a.beta1, (double)*step_in)));
    bias2 = (float)(1.0 / sqrt(1.0 - pow(a.beta2, (double)*step_in)));
  }
  __syncthreads();
  bool finite = isfinite(*norm);
  factors f = {*factor, decay, (float)a.beta1, (float)a.beta2, step_size, bias2, (float)a.eps};
  bool fast = aligned(s.p, s.m, s.v, g, compute) && aligned(copy.p, copy.m, copy.v) && a.first % EIGHT == 0;
  i64 eights = fast ? n / EIGHT : 0;
  for (i64 k = grid_index(); k < eights && (finite || copy.p); k += grid_stride()) {
    i64 i = k * EIGHT;
    float p[EIGHT], m[EIGHT], v[EIGHT], grad[EIGHT];
    read_eight(g, i, grad);
    read_eight(s.p, i, p);
    read_eight(s.m, i, m);
    read_eight(s.v, i, v);
    if (finite) {
      for (int j = 0; j < EIGHT; j++) update(p[j], grad[j], m[j], v[j], f);
      write_state(s, i, p, m, v);
    }
    if (copy.p) write_state(copy, i, p, m, v);
    if (!finite || !compute) continue;
    u32 word[4];
    philox random = {};
    if (a.stochastic) random = philox_at(a.seed, site, (u64)(a.first + i) / EIGHT, step);
    for (int j = 0; j < 4; j++)
      word[j] = a.stochastic ? round_bf16(p[2 * j], random.word[j] & 0xFFFFu, true) |
                                   round_bf16(p[2 * j + 1], random.word[j] >> 16, true) << 16
                             : pack_bf16(p[2 * j], p[2 * j + 1]);
    *(uint4 *)(compute + i) = make_uint4(word[0], word[1], word[2], word[3]);
  }
  for (i64 i = eights * EIGHT + grid_index(); i < n; i += grid_stride())
    one_element(s, g, copy, compute, finite, f, a, site, step, i);
}
