/* One client's training of the `cnn` (models/networks.py) on one core: forward, backward and SGD step without
 * autograd.
 *
 * Conv(1->16, 8x8, stride 2, pad 3) ReLU MaxPool(2, stride 1) Conv(16->32, 4x4, stride 2) ReLU MaxPool(2, stride 1)
 * Linear(512->32) ReLU Linear(32->outputs), cross-entropy. Images are channels last; 16 channels are one vector. Every
 * product keeps its sums in registers over the whole inner loop: one load of a vector, then a multiply-add for each of
 * several broadcast numbers. Written with the vector extension of gcc and clang, so any target will do.
 *
 * Parameters come packed (layout.py): the layout below, outputs padded to whole vectors with zeros.
 * Sums have a fixed order that depends on the client's own samples alone.
 */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* How wide a vector is; how many vectors, taps across and down, and places of a row are summed at a time: what the
 * registers of the machine can hold. */
#if defined(__AVX512F__)
enum { LANES = 16, WIDE = 2, ACROSS = 4, DOWN = 2, ROW = 14 };
#elif defined(__aarch64__)
enum { LANES = 4, WIDE = 2, ACROSS = 4, DOWN = 2, ROW = 14 };
#elif defined(__AVX__)
enum { LANES = 8, WIDE = 1, ACROSS = 2, DOWN = 1, ROW = 7 };
#else
enum { LANES = 4, WIDE = 1, ACROSS = 2, DOWN = 1, ROW = 7 };
#endif
typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ivec __attribute__((vector_size(4 * LANES)));
typedef uint8_t bvec __attribute__((vector_size(LANES)));
typedef float loose __attribute__((vector_size(4 * LANES), aligned(4), may_alias)); /* in memory: any alignment */

enum {
    SIDE = 28, PAD = 34,            /* image, and with its border of 3 */
    C1 = 14, P1 = 13, IN2 = 16,     /* first convolution and pool; its channels */
    C2 = 5, P2 = 4, OUT2 = 32,      /* second */
    FLAT = P2 * P2 * OUT2, HIDDEN = 32,
    TAPS1 = 64, TAPS2 = 16, STRIP = LANES * WIDE,
    W1 = 0, B1 = W1 + TAPS1 * 16,               /* packed layout: w1 (64, 16) */
    W2 = B1 + 16, B2 = W2 + TAPS2 * IN2 * OUT2, /* w2 (16 taps, 16 in, 32 out) */
    W3 = B2 + OUT2, B3 = W3 + FLAT * HIDDEN,    /* w3 (512 = 16 places x 32 channels, 32) */
    W4 = B3 + HIDDEN                            /* w4 (32, padded outputs), b4 (padded outputs) */
};

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 32")

INLINE vec load(const float *p) { return (vec)*(const loose *)p; }
INLINE void store(float *p, vec v) { *(loose *)p = (loose)v; }
INLINE vec zero(void) { return (vec){0}; }
INLINE vec pick(ivec mask, vec yes, vec no) { return (vec)((mask & (ivec)yes) | (~mask & (ivec)no)); }

typedef struct {
    float *images;  /* (n, 34, 34) of the whole client */
    float *conv1;   /* (14, 14, 16) of one image, then its gradient */
    float *pool1;   /* (batch, 13, 13, 16) */
    float *dpool1;  /* (13, 13, 16) of one image */
    float *conv2;   /* (5, 5, 32) of one image */
    float *dconv2;  /* (batch, 5, 5, 32) */
    float *pool2;   /* (batch, 512) */
    float *dpool2;  /* (512) of one image */
    float *hidden;  /* (batch, 32), then its gradient */
    float *logits;  /* (batch, padded), then their gradient */
    float *w2t;     /* (16 taps, 32 out, 16 in) */
    float *w3t;     /* (32, 512) */
    float *gradient;
    uint8_t *from1; /* (batch, 13, 13, 16) which of the four a maximum came from; 4: below zero */
    uint8_t *from2; /* (batch, 4, 4, 32) */
    void *block;
    size_t bytes;
} space;

static _Thread_local space shared;

static size_t rounded(size_t bytes) { return (bytes + 63) / 64 * 64; }

/* The buffers of this thread, kept between calls. NULL when there is no memory. */
static space *reserve(size_t n, size_t batch, size_t padded) {
    const size_t counts[] = {n * PAD * PAD, C1 * C1 * 16, batch * P1 * P1 * 16, P1 * P1 * 16, C2 * C2 * OUT2,
                             batch * C2 * C2 * OUT2, batch * FLAT, FLAT, batch * HIDDEN, batch * padded,
                             TAPS2 * IN2 * OUT2, FLAT * HIDDEN, W4 + 33 * padded};
    float **places[] = {&shared.images, &shared.conv1, &shared.pool1, &shared.dpool1, &shared.conv2,
                        &shared.dconv2, &shared.pool2, &shared.dpool2, &shared.hidden, &shared.logits,
                        &shared.w2t, &shared.w3t, &shared.gradient};
    const size_t number = sizeof counts / sizeof *counts;
    size_t bytes = rounded(batch * P1 * P1 * 16) + rounded(batch * FLAT);
    for (size_t i = 0; i < number; i++) bytes += rounded(4 * counts[i]);
    if (bytes > shared.bytes) {
        free(shared.block);
        shared.bytes = 0;
        if (posix_memalign(&shared.block, 64, bytes)) { shared.block = NULL; return NULL; }
        shared.bytes = bytes;
    }
    char *at = shared.block;
    for (size_t i = 0; i < number; i++) { *places[i] = (float *)at; at += rounded(4 * counts[i]); }
    shared.from1 = (uint8_t *)at;
    shared.from2 = (uint8_t *)at + rounded(batch * P1 * P1 * 16);
    return &shared;
}

static void pad_images(const float *inputs, size_t n, float *images) {
    memset(images, 0, n * PAD * PAD * sizeof(float));
    for (size_t i = 0; i < n; i++)
        for (int y = 0; y < SIDE; y++)
            memcpy(images + i * PAD * PAD + (y + 3) * PAD + 3, inputs + (i * SIDE + y) * SIDE, SIDE * sizeof(float));
}

/* ---- forward ---- */

static void convolve1(const float *image, const float *w, float *out) {
    for (int ch = 0; ch < 16; ch += LANES)
        for (int place = 0; place < C1 * C1; place += ROW) {
            const float *corner = image + 2 * (place / C1) * PAD + 2 * (place % C1);
            vec sum[ROW];
            UNROLL for (int x = 0; x < ROW; x++) sum[x] = load(w + B1 + ch);
            for (int r = 0; r < 8; r++) {
                const float *row = corner + r * PAD;
                for (int c = 0; c < 8; c++) {
                    vec tap = load(w + W1 + (r * 8 + c) * 16 + ch);
                    UNROLL for (int x = 0; x < ROW; x++) sum[x] += tap * row[2 * x + c];
                }
            }
            UNROLL for (int x = 0; x < ROW; x++) store(out + (place + x) * 16 + ch, sum[x]);
        }
}

INLINE void convolve2_places(const float *in, const float *w, float *out, const int first, const int count) {
    for (int ch = 0; ch < OUT2; ch += STRIP) {
        vec sum[13][WIDE];
        UNROLL for (int p = 0; p < count; p++)
            UNROLL for (int v = 0; v < WIDE; v++) sum[p][v] = load(w + B2 + ch + v * LANES);
        for (int ky = 0; ky < 4; ky++)
            for (int part = 0; part < 4 * IN2; part++) { /* a tap and a channel: neighbours in memory */
                const float *tap = w + W2 + (ky * 4 * IN2 + part) * OUT2 + ch, *from = in + ky * P1 * 16 + part;
                vec taps[WIDE];
                UNROLL for (int v = 0; v < WIDE; v++) taps[v] = load(tap + v * LANES);
                UNROLL for (int p = 0; p < count; p++) {
                    const float value = from[(2 * ((first + p) / C2) * P1 + 2 * ((first + p) % C2)) * 16];
                    UNROLL for (int v = 0; v < WIDE; v++) sum[p][v] += taps[v] * value;
                }
            }
        UNROLL for (int p = 0; p < count; p++)
            UNROLL for (int v = 0; v < WIDE; v++) store(out + (first + p) * OUT2 + ch + v * LANES, sum[p][v]);
    }
}

static void convolve2(const float *in, const float *w, float *out) {
    convolve2_places(in, w, out, 0, 13);
    convolve2_places(in, w, out, 13, 12);
}

/* ReLU and 2 x 2 maximum with stride 1 without a record of where it came from; NaN passes. */
INLINE void pool_alone(const float *in, const int side, const int channels, float *out) {
    for (int y = 0; y < side - 1; y++)
        for (int x = 0; x < side - 1; x++)
            for (int c = 0; c < channels; c += LANES) {
                const float *at = in + (y * side + x) * channels + c;
                vec best = zero();
                UNROLL for (int k = 0; k < 4; k++) {
                    vec other = load(at + ((k / 2) * side + k % 2) * channels);
                    best = pick((other > best) | (other != other), other, best);
                }
                store(out + (y * (side - 1) + x) * channels + c, best);
            }
}

/* The same with a record, the first of equals winning as in PyTorch. */
INLINE void pool(const float *in, const int side, const int channels, float *out, uint8_t *from) {
    for (int y = 0; y < side - 1; y++)
        for (int x = 0; x < side - 1; x++)
            for (int c = 0; c < channels; c += LANES) {
                const float *at = in + (y * side + x) * channels + c;
                vec best = load(at);
                ivec code = {0};
                UNROLL for (int k = 1; k < 4; k++) {
                    vec other = load(at + ((k / 2) * side + k % 2) * channels);
                    ivec larger = (other > best) | (other != other);
                    best = pick(larger, other, best);
                    code = (larger & k) | (~larger & code);
                }
                ivec below = best <= 0;
                const int place = (y * (side - 1) + x) * channels + c;
                store(out + place, pick(below, zero(), best));
                code = (below & 4) | (~below & code);
                *(bvec *)(from + place) = __builtin_convertvector(code, bvec);
            }
}

INLINE void dense_rows(const float *in, const int rows, const float *w, float *out) {
    for (int ch = 0; ch < HIDDEN; ch += STRIP) {
        vec sum[10][WIDE];
        UNROLL for (int s = 0; s < rows; s++)
            UNROLL for (int v = 0; v < WIDE; v++) sum[s][v] = load(w + B3 + ch + v * LANES);
        for (int i = 0; i < FLAT; i++)
            UNROLL for (int v = 0; v < WIDE; v++) {
                vec column = load(w + W3 + i * HIDDEN + ch + v * LANES);
                UNROLL for (int s = 0; s < rows; s++) sum[s][v] += column * in[s * FLAT + i];
            }
        UNROLL for (int s = 0; s < rows; s++)
            UNROLL for (int v = 0; v < WIDE; v++) store(out + s * HIDDEN + ch + v * LANES, sum[s][v]);
    }
}

/* Linear(512->32) and ReLU. A row's own sum does not depend on how many rows are done together. */
static void dense(const float *in, size_t count, const float *w, float *out) {
    size_t s = 0;
    for (; s + 10 <= count; s += 10) dense_rows(in + s * FLAT, 10, w, out + s * HIDDEN);
    for (; s + 4 <= count; s += 4) dense_rows(in + s * FLAT, 4, w, out + s * HIDDEN);
    for (; s < count; s++) dense_rows(in + s * FLAT, 1, w, out + s * HIDDEN);
    for (size_t i = 0; i < count * HIDDEN; i += LANES) {
        vec value = load(out + i);
        store(out + i, pick(value <= 0, zero(), value));
    }
}

INLINE void forward(space *s, const float *w, const int64_t *chosen, size_t batch, size_t padded, const int keep) {
    for (size_t b = 0; b < batch; b++) {
        const size_t b1 = b * P1 * P1 * 16, b2 = b * FLAT;
        convolve1(s->images + (keep ? (size_t)chosen[b] : b) * PAD * PAD, w, s->conv1);
        if (keep) pool(s->conv1, C1, 16, s->pool1 + b1, s->from1 + b1);
        else pool_alone(s->conv1, C1, 16, s->pool1 + b1);
        convolve2(s->pool1 + b1, w, s->conv2);
        if (keep) pool(s->conv2, C2, OUT2, s->pool2 + b2, s->from2 + b2);
        else pool_alone(s->conv2, C2, OUT2, s->pool2 + b2);
    }
    dense(s->pool2, batch, w, s->hidden);
    const float *w4 = w + W4, *b4 = w4 + HIDDEN * padded;
    for (size_t b = 0; b < batch; b++)
        for (size_t o = 0; o < padded; o += LANES) {
            vec sum = load(b4 + o);
            for (int i = 0; i < HIDDEN; i++) sum += load(w4 + i * padded + o) * s->hidden[b * HIDDEN + i];
            store(s->logits + b * padded + o, sum);
        }
}

/* ---- loss ---- */

/* log of the sum of exponentials of a row, less its largest entry, which is returned in `top`. */
static float log_sum(const float *row, size_t outputs, float *top) {
    float most = row[0], sum = 0;
    for (size_t o = 1; o < outputs; o++) most = row[o] > most ? row[o] : most;
    for (size_t o = 0; o < outputs; o++) sum += expf(row[o] - most);
    *top = most;
    return logf(sum);
}

/* Logits become the gradient of the mean cross-entropy over the batch. */
static void softmax_gradient(float *logits, const int64_t *targets, const int64_t *chosen, size_t batch, size_t outputs,
                             size_t padded) {
    for (size_t b = 0; b < batch; b++) {
        float *row = logits + b * padded, top, rest = log_sum(row, outputs, &top);
        for (size_t o = 0; o < outputs; o++)
            row[o] = (expf(row[o] - top - rest) - (o == (size_t)targets[chosen[b]])) / (float)batch;
        for (size_t o = outputs; o < padded; o++) row[o] = 0;
    }
}

/* ---- backward ---- */

static void transpose(const float *in, int rows, int columns, float *out) { /* (rows, columns) -> (columns, rows) */
    for (int c = 0; c < columns; c += 16)
        for (int r = 0; r < rows; r++)
            UNROLL for (int i = 0; i < 16; i++) out[(c + i) * rows + r] = in[r * columns + c + i];
}

/* Last layer: its gradients, and that of the hidden layer before its ReLU (in place of its values). */
static void last_backward(space *s, const float *w, size_t batch, size_t padded) {
    const float *w4 = w + W4;
    float *g4 = s->gradient + W4, *gb = g4 + HIDDEN * padded;
    memset(g4, 0, (HIDDEN + 1) * padded * sizeof(float));
    for (size_t b = 0; b < batch; b++) {
        const float *row = s->logits + b * padded;
        float *hidden = s->hidden + b * HIDDEN;
        for (size_t o = 0; o < padded; o += LANES) store(gb + o, load(gb + o) + load(row + o));
        for (int i = 0; i < HIDDEN; i++) {
            vec sum = zero();
            for (size_t o = 0; o < padded; o += LANES) {
                vec value = load(row + o);
                store(g4 + i * padded + o, load(g4 + i * padded + o) + value * hidden[i]);
                sum += load(w4 + i * padded + o) * value;
            }
            float total = 0;
            UNROLL for (int lane = 0; lane < LANES; lane++) total += sum[lane];
            hidden[i] = hidden[i] <= 0 ? 0 : total;
        }
    }
}

static void sum_rows(const float *rows, size_t count, int columns, float *out) {
    for (int ch = 0; ch < columns; ch += LANES) {
        vec sum = zero();
        for (size_t r = 0; r < count; r++) sum += load(rows + r * columns + ch);
        store(out + ch, sum);
    }
}

/* Linear(512->32): gradients of its weights and bias over the whole batch, eight inputs at a time. */
static void dense_backward(space *s, size_t batch) {
    sum_rows(s->hidden, batch, HIDDEN, s->gradient + B3);
    for (int ch = 0; ch < HIDDEN; ch += STRIP)
        for (int i = 0; i < FLAT; i += 8) {
            vec sum[8][WIDE] = {0};
            for (size_t b = 0; b < batch; b++)
                UNROLL for (int v = 0; v < WIDE; v++) {
                    vec value = load(s->hidden + b * HIDDEN + ch + v * LANES);
                    UNROLL for (int k = 0; k < 8; k++) sum[k][v] += value * s->pool2[b * FLAT + i + k];
                }
            UNROLL for (int k = 0; k < 8; k++)
                UNROLL for (int v = 0; v < WIDE; v++)
                    store(s->gradient + W3 + (i + k) * HIDDEN + ch + v * LANES, sum[k][v]);
        }
}

static void dense_input_backward(const float *hidden, const float *w3t, float *out) {
    for (int i = 0; i < FLAT; i += 8 * LANES) {
        vec sum[8] = {0};
        for (int o = 0; o < HIDDEN; o++)
            UNROLL for (int k = 0; k < 8; k++) sum[k] += load(w3t + o * FLAT + i + k * LANES) * hidden[o];
        UNROLL for (int k = 0; k < 8; k++) store(out + i + k * LANES, sum[k]);
    }
}

INLINE void pool_backward(const float *gradient, const uint8_t *from, const int side, const int channels, float *out) {
    memset(out, 0, side * side * channels * sizeof(float));
    for (int y = 0; y < side - 1; y++)
        for (int x = 0; x < side - 1; x++)
            for (int c = 0; c < channels; c += LANES) {
                const int place = (y * (side - 1) + x) * channels + c;
                ivec code = __builtin_convertvector(*(const bvec *)(from + place), ivec);
                vec value = load(gradient + place);
                float *at = out + (y * side + x) * channels + c;
                UNROLL for (int k = 0; k < 4; k++) {
                    float *to = at + ((k / 2) * side + k % 2) * channels;
                    store(to, load(to) + pick(code == k, value, zero()));
                }
            }
}

/* Eight input channels of one tap of the second convolution: their weights' gradients over the whole batch. */
INLINE void convolve2_tap_backward(const float *in, const float *out, size_t batch, float *to) {
    vec sum[8][WIDE] = {0};
    for (size_t b = 0; b < batch; b++, in += P1 * P1 * 16, out += C2 * C2 * OUT2)
        for (int y = 0; y < C2; y++)
            UNROLL for (int x = 0; x < C2; x++) {
                const float *from = in + (2 * y * P1 + 2 * x) * 16;
                UNROLL for (int v = 0; v < WIDE; v++) {
                    vec value = load(out + (y * C2 + x) * OUT2 + v * LANES);
                    UNROLL for (int k = 0; k < 8; k++) sum[k][v] += value * from[k];
                }
            }
    UNROLL for (int k = 0; k < 8; k++)
        UNROLL for (int v = 0; v < WIDE; v++) store(to + k * OUT2 + v * LANES, sum[k][v]);
}

static void convolve2_backward(space *s, size_t batch) {
    sum_rows(s->dconv2, batch * C2 * C2, OUT2, s->gradient + B2);
    for (int ch = 0; ch < OUT2; ch += STRIP)
        for (int tap = 0; tap < TAPS2; tap++)
            for (int half = 0; half < IN2; half += 8)
                convolve2_tap_backward(s->pool1 + ((tap / 4) * P1 + tap % 4) * 16 + half, s->dconv2 + ch, batch,
                                       s->gradient + W2 + (tap * IN2 + half) * OUT2 + ch);
}

/* The gradient of its input, for one image: a row of five places and ACROSS taps of a row at a time. */
INLINE void convolve2_strip_backward(const float *from, const float *taps, float *to) {
    vec sum[C2][ACROSS] = {0};
    for (int o = 0; o < OUT2; o++) {
        vec w[ACROSS];
        UNROLL for (int k = 0; k < ACROSS; k++) w[k] = load(taps + (k * OUT2 + o) * IN2);
        UNROLL for (int x = 0; x < C2; x++)
            UNROLL for (int k = 0; k < ACROSS; k++) sum[x][k] += w[k] * from[x * OUT2 + o];
    }
    UNROLL for (int x = 0; x < C2; x++)
        UNROLL for (int k = 0; k < ACROSS; k++) {
            float *at = to + (2 * x + k) * 16;
            store(at, load(at) + sum[x][k]);
        }
}

static void convolve2_input_backward(const float *gradient, const float *w2t, float *out) {
    memset(out, 0, P1 * P1 * 16 * sizeof(float));
    for (int ch = 0; ch < IN2; ch += LANES)
        for (int ky = 0; ky < 4; ky++)
            for (int y = 0; y < C2; y++)
                for (int kx = 0; kx < 4; kx += ACROSS)
                    convolve2_strip_backward(gradient + y * C2 * OUT2, w2t + (ky * 4 + kx) * OUT2 * IN2 + ch,
                                             out + ((2 * y + ky) * P1 + kx) * 16 + ch);
}

/* First convolution, one image: DOWN rows of eight taps at a time, added to the batch's gradient. */
static void convolve1_backward(const float *image, const float *gradient, float *g) {
    for (int ch = 0; ch < 16; ch += LANES) {
        vec bias = load(g + B1 + ch);
        for (int p = 0; p < C1 * C1; p++) bias += load(gradient + p * 16 + ch);
        store(g + B1 + ch, bias);
        for (int r = 0; r < 8; r += DOWN) {
            vec sum[8 * DOWN];
            UNROLL for (int k = 0; k < 8 * DOWN; k++) sum[k] = load(g + W1 + (r * 8 + k) * 16 + ch);
            for (int y = 0; y < C1; y++) {
                const float *row = image + (2 * y + r) * PAD;
                for (int x = 0; x < C1; x++) {
                    vec value = load(gradient + (y * C1 + x) * 16 + ch);
                    UNROLL for (int k = 0; k < 8 * DOWN; k++) sum[k] += value * row[(k / 8) * PAD + 2 * x + k % 8];
                }
            }
            UNROLL for (int k = 0; k < 8 * DOWN; k++) store(g + W1 + (r * 8 + k) * 16 + ch, sum[k]);
        }
    }
}

static void backward(space *s, const float *w, const int64_t *chosen, size_t batch, size_t padded) {
    last_backward(s, w, batch, padded);
    dense_backward(s, batch);
    transpose(w + W3, FLAT, HIDDEN, s->w3t);
    for (int tap = 0; tap < TAPS2; tap++)
        transpose(w + W2 + tap * IN2 * OUT2, IN2, OUT2, s->w2t + tap * IN2 * OUT2);
    memset(s->gradient + W1, 0, (TAPS1 * 16 + 16) * sizeof(float));
    for (size_t b = 0; b < batch; b++) {
        float *dconv2 = s->dconv2 + b * C2 * C2 * OUT2;
        dense_input_backward(s->hidden + b * HIDDEN, s->w3t, s->dpool2);
        pool_backward(s->dpool2, s->from2 + b * FLAT, C2, OUT2, dconv2);
        convolve2_input_backward(dconv2, s->w2t, s->dpool1);
        pool_backward(s->dpool1, s->from1 + b * P1 * P1 * 16, C1, 16, s->conv1);
        convolve1_backward(s->images + (size_t)chosen[b] * PAD * PAD, s->conv1, s->gradient);
    }
    convolve2_backward(s, batch);
}

static void descend(float *w, const float *gradient, size_t count, float rate, float proximal, const float *anchor,
                    const float *moving) {
    for (size_t i = 0; i < count; i += LANES) {
        vec value = load(w + i), step = load(gradient + i);
        if (proximal > 0) step += proximal * (value - load(anchor + i));
        if (moving) step = pick(load(moving + i) > 0, step, zero());
        store(w + i, value - rate * step);
    }
}

/* ---- exported functions ---- */

/* SGD from `w`, in place. `orders` (epochs, n): positions of the samples. `anchor` and `moving` are packed or NULL.
 * 0, or 1 when there is no memory. */
int rrcluster_cnn_train(float *w, const float *inputs, const int64_t *targets, const int64_t *orders, size_t n,
                        size_t outputs, size_t epochs, size_t batch_size, float rate, float proximal,
                        const float *anchor, const float *moving) {
    const size_t padded = (outputs + 15) / 16 * 16;
    space *s = reserve(n, batch_size < n ? batch_size : n, padded);
    if (!s) return 1;
    pad_images(inputs, n, s->images);
    for (size_t epoch = 0; epoch < epochs; epoch++)
        for (size_t first = 0; first < n; first += batch_size) {
            const size_t batch = n - first < batch_size ? n - first : batch_size;
            const int64_t *chosen = orders + epoch * n + first;
            forward(s, w, chosen, batch, padded, 1);
            softmax_gradient(s->logits, targets, chosen, batch, outputs, padded);
            backward(s, w, chosen, batch, padded);
            descend(w, s->gradient, W4 + (HIDDEN + 1) * padded, rate, proximal, anchor, moving);
        }
    return 0;
}

/* Adds to `sums` (2) the cross-entropy of a batch and how many of it are classified rightly. */
static void judge(const float *logits, const int64_t *targets, size_t batch, size_t outputs, size_t padded, double *sums) {
    for (size_t b = 0; b < batch; b++) {
        const float *row = logits + b * padded;
        float top, rest = log_sum(row, outputs, &top);
        size_t best = 0;
        for (size_t o = 1; o < outputs; o++)
            if (row[o] > row[best] || (row[o] != row[o] && row[best] == row[best])) best = o;
        sums[0] += rest - (row[targets[b]] - top);
        sums[1] += best == (size_t)targets[b];
    }
}

/* Sums over n samples for k models (k, padded parameters): `sums` (k, 2). 0, or 1 when there is no memory. */
int rrcluster_cnn_measure(const float *w, size_t k, const float *inputs, const int64_t *targets, size_t n, size_t outputs,
                          double *sums) {
    enum { AT_ONCE = 20 };
    const size_t padded = (outputs + 15) / 16 * 16, length = W4 + (HIDDEN + 1) * padded;
    space *s = reserve(AT_ONCE, AT_ONCE, padded);
    if (!s) return 1;
    memset(sums, 0, 2 * k * sizeof(double));
    for (size_t first = 0; first < n; first += AT_ONCE) {
        const size_t batch = n - first < AT_ONCE ? n - first : AT_ONCE;
        pad_images(inputs + first * SIDE * SIDE, batch, s->images);
        for (size_t model = 0; model < k; model++) {
            forward(s, w + model * length, NULL, batch, padded, 0);
            judge(s->logits, targets + first, batch, outputs, padded, sums + 2 * model);
        }
    }
    return 0;
}
