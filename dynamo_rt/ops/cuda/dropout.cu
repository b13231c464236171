/* SPDX-License-Identifier: Apache-2.0 */
/* Dropout: an element's draw is a function of its place (ops/cpu/embedding_cpu.c has the same), 16 bits of a
 * Philox4x32-10 for each of eight channels (fx_dropout_rule).
 *
 * A draw is 20 products of 32 x 32 bits and about 40 more instructions, for 16 bytes of bfloat16 in and out.
 * Hence (1) the keys of the rounds come with the parameters, operands from constant
 * memory; (2) of the counter's four words only the lowest changes within 2^32 draws: of the first two rounds'
 * four products two are the same for all of them (`begin_draws`); (3) the grid's y is the sample, so that no
 * thread divides; (4) all vectors of a thread are under way before its first draw. */

enum { ROUNDS = 10, AHEAD = 4 /* vectors of a thread */ };

struct dropout_params {
  u32 key[2 * ROUNDS]; /* of round r: key[2 r], key[2 r + 1] */
  u32 below;           /* fx_dropout_rule */
  float keep;
  i64 rows, cols, length, first; /* row 0 of x is row `first` of all samples' positions */
};

struct draws {                  /* what draws whose indices share the upper word have in common */
  u32 high, step_high, a, b, c; /* step_high: of round 1; a, b, c: of round 2 */
};

__device__ inline void product(u32 a, u32 b, u32 &high, u32 &low) {
  asm("{\n.reg .b64 p;\nmul.wide.u32 p, %2, %3;\nmov.b64 {%0, %1}, p;\n}"
      : "=r"(low), "=r"(high)
      : "r"(a), "r"(b));
}

__device__ inline draws begin_draws(const dropout_params &d, u32 high, u64 step) {
  draws s;
  u32 h0, l0, h1, l1;
  product((u32)step, 0xCD9E8D57u, h1, l1);
  product(h1 ^ high ^ d.key[0], 0xD2511F53u, h0, l0);
  s.high = high;
  s.step_high = (u32)(step >> 32) ^ d.key[1];
  s.a = l1 ^ d.key[2], s.b = h0 ^ d.key[3], s.c = l0;
  return s;
}

/* philox_at of the index (s.high, low) */
__device__ inline philox draw(const dropout_params &d, const draws &s, u32 low) {
  u32 h0, l0, h1, l1;
  product(low, 0xD2511F53u, h0, l0);
  product(h0 ^ s.step_high, 0xCD9E8D57u, h1, l1);
  u32 c0 = h1 ^ s.a, c1 = l1, c2 = l0 ^ s.b, c3 = s.c;
#pragma unroll
  for (int round = 2; round < ROUNDS; round++) {
    product(c0, 0xD2511F53u, h0, l0), product(c2, 0xCD9E8D57u, h1, l1);
    c0 = h1 ^ c1 ^ d.key[2 * round], c2 = h0 ^ c3 ^ d.key[2 * round + 1];
    c1 = l1, c3 = l0;
  }
  philox out = {{c0, c1, c2, c3}};
  return out;
}

/* Two elements by a word's halves. */
__device__ inline void drop_two(const dropout_params &d, u32 word, float &low, float &high) {
  low = (word & 0xFFFFu) < d.below ? 0.0f : low * d.keep;
  high = word >> 16 < d.below ? 0.0f : high * d.keep;
}

/* Vector `place` of those whose draws begin at `base`. */
__device__ inline uint4 drop(const dropout_params &d, const draws &sample, u64 base, u64 place, u64 step,
                             uint4 in) {
  float x[VEC];
  draws s = sample;
  u64 index = base + place * VEC / 8;
  if ((u32)(index >> 32) != s.high) s = begin_draws(d, (u32)(index >> 32), step);
  philox random = draw(d, s, (u32)index);
  bool upper = place * VEC % 8 != 0; /* the second half of a draw; never, where a vector is a whole one */
  unpack(in, x);
#pragma unroll
  for (int i = 0; i < VEC / 2; i++)
    drop_two(d, upper ? random.word[i + 4 - VEC / 2] : random.word[i], x[2 * i], x[2 * i + 1]);
  return pack(x);
}

/* grid (ceil(vectors of a sample / (FLAT AHEAD)), samples that x touches). Rows of whole draws at multiples
 * of 16 bytes, fewer than 2^31 vectors a sample. y may be x. blocks: position of every 128 rows of a sample,
 * or NULL. */
KERNEL_RESIDENT(dropout, FLAT, 4)
(const T *x, const i64 *ordinal, const i64 *iteration, const int *blocks, T *y, dropout_params d) {
  follow();
  i64 sample = d.first / d.length + blockIdx.y, begin = blockIdx.y ? 0 : d.first - sample * d.length;
  i64 row = sample * d.length + begin - d.first, rows = d.length - begin;
  if (rows > d.rows - row) rows = d.rows - row;
  int each = (int)(d.cols / VEC);
  i64 vectors = rows * each, at = (i64)blockIdx.x * FLAT * AHEAD + threadIdx.x;
  uint4 in[AHEAD];
  x += row * d.cols, y += row * d.cols;
#pragma unroll
  for (int j = 0; j < AHEAD; j++)
    if (at + j * FLAT < vectors) in[j] = stream_vector(x + (at + j * FLAT) * VEC);
  u64 step = (u64)*iteration, base = (u64)ordinal[sample] << 40;
  draws s = begin_draws(d, (u32)(base >> 32), step);
#pragma unroll
  for (int j = 0; j < AHEAD; j++) {
    i64 v = at + j * FLAT;
    if (v >= vectors) break;
    u64 place = (u64)(begin * each + v);
    if (blocks) {
      u32 down = (u32)v / (u32)each, across = (u32)v - down * (u32)each;
      i64 t = begin + down;
      place = (u64)(blocks[t / 128] + t % 128) * (u64)each + across;
    }
    *(uint4 *)(y + v * VEC) = drop(d, s, base, place, step, in[j]);
  }
}

/* The same for any rows, by groups of blockDim.x threads. */
KERNEL(dropout_rows, FLAT)
(const T *x, const i64 *ordinal, const i64 *iteration, const int *blocks, T *y, dropout_params d) {
  follow();
  i64 each = (d.cols + 7) / 8;
  u64 step = (u64)*iteration;
  for (i64 r = (i64)blockIdx.x * blockDim.y + threadIdx.y; r < d.rows; r += (i64)gridDim.x * blockDim.y) {
    i64 sample = (d.first + r) / d.length, t = d.first + r - sample * d.length;
    i64 position = blocks ? blocks[t / 128] + t % 128 : t;
    for (i64 q = threadIdx.x; q < each; q += blockDim.x) {
      u64 index = ((u64)ordinal[sample] << 40) + (u64)(position * each + q);
      philox random = draw(d, begin_draws(d, (u32)(index >> 32), step), (u32)index);
#pragma unroll
      for (int j = 0; j < 8; j++) {
        i64 at = r * d.cols + 8 * q + j;
        u32 bits = random.word[j / 2] >> j % 2 * 16 & 0xFFFFu;
        if (8 * q + j < d.cols) put(y + at, bits < d.below ? 0.0f : get(x + at) * d.keep);
      }
    }
  }
}
