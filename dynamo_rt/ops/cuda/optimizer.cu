/* SPDX-License-Identifier: Apache-2.0 */
/* Global norm in double over fixed chunks, and AdamW. */

/* partial[b]: sum of squares of elements [b chunk, (b + 1) chunk) */
extern "C" __global__ void square_partial(const float *grad, double *partial, i64 n, i64 chunk) {
  i64 begin = blockIdx.x * chunk, end = begin + chunk < n ? begin + chunk : n;
  double sum = 0;
  for (i64 i = begin + threadIdx.x; i < end; i += blockDim.x) sum += (double)grad[i] * (double)grad[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

/* One block: norm, and the factor min(1, max_norm / (norm + 1e-6)); max_norm 0: 1. */
extern "C" __global__ void clip_factor(const double *partial, float *norm_out, float *factor_out,
                                       double max_norm, i64 chunks) {
  double sum = 0;
  for (i64 i = threadIdx.x; i < chunks; i += blockDim.x) sum += partial[i];
  sum = block_sum(sum);
  if (threadIdx.x != 0) return;
  double norm = sqrt(sum), factor = max_norm > 0 ? max_norm / (norm + 1e-6) : 1.0;
  *norm_out = (float)norm;
  *factor_out = (float)(factor < 1.0 ? factor : 1.0);
}

struct adamw {
  double beta1, beta2, eps, weight_decay;
};

/* A norm that is not finite leaves parameters and moments as they were. copy_*: NULL, or a snapshot that gets
 * the state after the step all the same. */
extern "C" __global__ void adamw_f32(float *p, const float *g, float *m, float *v, const float *lr_in,
                                     const i64 *step_in, const float *norm, const float *factor, adamw a,
                                     float *copy_p, float *copy_m, float *copy_v, i64 n) {
  __shared__ float decay, step_size, bias2;
  if (threadIdx.x == 0) {
    double lr = (double)*lr_in, step = (double)*step_in;
    decay = (float)(1.0 - lr * a.weight_decay);
    step_size = (float)(lr / (1.0 - pow(a.beta1, step)));
    bias2 = (float)(1.0 / sqrt(1.0 - pow(a.beta2, step)));
  }
  __syncthreads();
  bool update = isfinite(*norm);
  float gf = *factor, b1 = (float)a.beta1, b2 = (float)a.beta2, eps = (float)a.eps;
  for (i64 i = grid_index(); i < n; i += grid_stride()) {
    float pi = p[i], mi = m[i], vi = v[i];
    if (update) {
      float grad = g[i] * gf;
      mi = mi + (1.0f - b1) * (grad - mi);
      vi = b2 * vi + (1.0f - b2) * grad * grad;
      pi = pi * decay - step_size * (mi / (sqrtf(vi) * bias2 + eps));
      p[i] = pi;
      m[i] = mi;
      v[i] = vi;
    }
    if (copy_p) {
      copy_p[i] = pi;
      copy_m[i] = mi;
      copy_v[i] = vi;
    }
  }
}
