/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of the forward, whatever computed them: running maximum and sum, the normalised end, ring attention's
 * running state. */
enum { DB = FX_D / 8 };

typedef struct forward_rows {
  row_info row[2];
  float m[2], l[2];
} forward_rows;

FX_DEVICE float natural_lse(float m, float l) {
  return l == 0.0f ? -FX_INF : __fmaf_rn(m, FX_LN2, logf(l));
}

/* A sink joins the denominator: *lse = ln(exp(*lse) + exp(sink)); the factor for the row. */
FX_DEVICE float add_sink(float sink, float *lse) {
  float old = *lse, top = fmaxf(old, sink);
  if (top == -FX_INF) return 0.0f;
  *lse = top + logf(expf(old - top) + expf(sink - top));
  return expf(old - *lse);
}

/* lse of the lane's two rows, of which t is the first, and what normalises them. */
FX_DEVICE void finish_rows(const fx_flash_args *args, int32_t b, int32_t h, int32_t t,
                           const forward_rows *rows, float (&inverse)[2]) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    int32_t row = t + 8 * r;
    float l = quad_sum(rows->l[r]), lse = natural_lse(rows->m[r], l);
    inverse[r] = l == 0.0f ? 0.0f : 1.0f / l;
    if (args->sinks) inverse[r] *= add_sink(args->sinks[h], &lse);
    if (threadIdx.x % 4 == 0 && row < args->Tpad)
      args->lse[((int64_t)b * args->H + h) * args->Tpad + row] = row < args->T_q ? lse : -FX_INF;
  }
}

#if FX_PARTIAL
FX_DEVICE float *state_at(const fx_flash_args *args, int32_t b, int32_t h, int32_t row) {
  return (float *)args->out.data + b * args->out.batch + h * args->out.head + row * args->out.time;
}

FX_DEVICE void state_load(const fx_flash_args *args, int32_t b, int32_t h, int32_t t, forward_rows *rows,
                          float (&o)[DB][4]) {
  int32_t column = threadIdx.x % 4 * 2;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    int32_t row = t + 8 * r;
    if (args->first || row >= args->T_q) continue;
    int64_t place = ((int64_t)b * args->H + h) * args->Tpad + row;
    rows->m[r] = args->m[place];
    rows->l[r] = column == 0 ? args->l[place] : 0.0f;
    const float *state = state_at(args, b, h, row);
#pragma unroll
    for (int n = 0; n < DB; n++)
      o[n][2 * r] = state[n * 8 + column], o[n][2 * r + 1] = state[n * 8 + column + 1];
  }
}

FX_DEVICE void state_store(const fx_flash_args *args, int32_t b, int32_t h, int32_t t,
                           const forward_rows *rows, float (&o)[DB][4]) {
  int32_t column = threadIdx.x % 4 * 2;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    int32_t row = t + 8 * r;
    float l = quad_sum(rows->l[r]);
    if (row >= args->T_q) continue;
    int64_t place = ((int64_t)b * args->H + h) * args->Tpad + row;
    if (column == 0) args->m[place] = rows->m[r], args->l[place] = l;
    float *state = state_at(args, b, h, row);
#pragma unroll
    for (int n = 0; n < DB; n++)
      state[n * 8 + column] = o[n][2 * r], state[n * 8 + column + 1] = o[n][2 * r + 1];
  }
}
#endif

/* After the last merge: `q` is the fp32 state, `out` of the element type. grid (Tpad / 4, H, B); a warp a
 * row. */
extern "C" __global__ void __launch_bounds__(128) flex_finish(const __grid_constant__ fx_flash_args a) {
  int32_t row = blockIdx.x * 4 + threadIdx.x / 32, h = blockIdx.y, b = blockIdx.z, lane = threadIdx.x % 32;
  int64_t place = ((int64_t)b * a.H + h) * a.Tpad + row;
  float lse = -FX_INF, inverse = 0.0f;
  if (row < a.T_q) {
    float l = a.l[place];
    inverse = l == 0.0f ? 0.0f : 1.0f / l;
    lse = natural_lse(a.m[place], l);
    if (a.sinks) inverse *= add_sink(a.sinks[h], &lse);
    const float *state = (const float *)a.q.data + b * a.q.batch + h * a.q.head + row * a.q.time;
    for (int32_t d = 2 * lane; d < FX_D; d += 64)
      store_pair(at(&a.out, b, h, row) + d, state[d] * inverse, state[d + 1] * inverse);
  }
  if (lane == 0) a.lse[place] = lse;
}
