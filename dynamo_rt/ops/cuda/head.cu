/* SPDX-License-Identifier: Apache-2.0 */
/* Cross-entropy on the logits of one chunk of rows: a block a row. */

struct fault {
  int kind;
  int id;
  i64 place, limit;
};
enum { FAULT_TARGET = 2 };

/* logits [rows, vocab], of which `valid` columns count. nll [rows]; with grad the row becomes
 * factor (softmax - onehot), zero in the padding and in masked rows (target < 0). */
extern "C" __global__ void cross_entropy(float *logits, const int *targets, const float *factor, float *nll,
                                         i64 vocab, i64 valid, i64 first_row, int grad, fault *report) {
  i64 r = blockIdx.x;
  float *row = logits + r * vocab;
  int target = targets[r];
  if (target < 0 || target >= valid) {
    if (target >= valid && threadIdx.x == 0 && atomicCAS_system(&report->kind, 0, FAULT_TARGET) == 0) {
      report->id = target;
      report->place = first_row + r;
      report->limit = valid;
    }
    for (i64 i = threadIdx.x; grad && i < vocab; i += blockDim.x) row[i] = 0.0f;
    if (threadIdx.x == 0) nll[r] = 0.0f;
    return;
  }
  float m = __int_as_float(0xff800000), picked = row[target];
  for (i64 i = threadIdx.x; i < valid; i += blockDim.x) m = fmaxf(m, row[i]);
  m = block_max(m);
  float sum = 0.0f;
  for (i64 i = threadIdx.x; i < valid; i += blockDim.x) {
    float e = expf(row[i] - m);
    if (grad) row[i] = e;
    sum += e;
  }
  sum = block_sum(sum); /* its barriers also keep `picked` before the writes below */
  if (grad) {
    float scale = *factor / sum;
    for (i64 i = threadIdx.x; i < vocab; i += blockDim.x) {
      float p = i < valid ? row[i] * scale : 0.0f;
      row[i] = i == target ? p - *factor : p;
    }
  }
  if (threadIdx.x == 0) nll[r] = logf(sum) + (m - picked);
}

/* loss = factor sum(nll), in double; one block */
extern "C" __global__ void sum_nll(const float *nll, const float *factor, float *loss, i64 rows) {
  double sum = 0;
  for (i64 r = threadIdx.x; r < rows; r += blockDim.x) sum += (double)nll[r];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *loss = (float)(sum * (double)*factor);
}
