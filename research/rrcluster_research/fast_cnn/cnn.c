/* One client's training of the `cnn` (models/networks.py) on one core: forward, backward and SGD step without
 * autograd.
 *
 * Conv(1->16, 8x8, stride 2, pad 3) ReLU MaxPool(2, stride 1) Conv(16->32, 4x4, stride 2) ReLU MaxPool(2, stride 1)
 * Linear(512->32) ReLU Linear(32->outputs), cross-entropy. Images are channels last; 16 channels are one vector. Every
 * product keeps its sums in registers over the whole inner loop: one load of a vector, then a multiply-add for each of
 * several broadcast numbers. Written with the vector extension of gcc and clang, so any target will do.
 *
 * What cannot matter is not computed. The windows of the second convolution end one row and column before its input
 * does, so the first pool has 12 x 12 places that count, not 13 x 13, and the first convolution 13 x 13, not 14 x 14.
 * A maximum hands its gradient to one place of four, or to none below zero: three in four of the gradients of the
 * second convolution are zero, and are left out. So are rows of images that are zero, as their border is.
 *
 * Parameters come packed (layout.py): the layout below, outputs padded to whole vectors with zeros.
 * Sums have a fixed order that depends on the client's own samples alone.
 */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* How wide a vector is; how many vectors, rows of taps and places are summed at a time: what the registers of the
 * machine can hold. */
#if defined(__AVX512F__)
enum { LANES = 16, WIDE = 2, DOWN = 2, ROWS = 4, PLACES = 13 };
#elif defined(__aarch64__)
enum { LANES = 4, WIDE = 2, DOWN = 2, ROWS = 4, PLACES = 13 };
#elif defined(__AVX__)
enum { LANES = 8, WIDE = 1, DOWN = 1, ROWS = 2, PLACES = 7 };
#else
enum { LANES = 4, WIDE = 1, DOWN = 1, ROWS = 2, PLACES = 7 };
#endif
typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ivec __attribute__((vector_size(4 * LANES), may_alias));
typedef float loose __attribute__((vector_size(4 * LANES), aligned(4), may_alias)); /* in memory: any alignment */

enum {
    SIDE = 28, PAD = 34,            /* image, and with its border of 3 */
    C1 = 13, P1 = 12, IN2 = 16,     /* first convolution and pool, less a last row and column; its channels */
    C2 = 5, P2 = 4, OUT2 = 32,      /* second */
    ROW2 = 4 * IN2,                 /* a row of taps of the second: neighbours in memory, as is its input */
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
    uint8_t *drawn; /* (n, 34): rows that are not all zero */
    float *conv1;   /* (13, 13, 16) of one image, then its gradient */
    float *pool1;   /* (batch, 12, 12, 16) */
    float *dpool1;  /* (12, 12, 16) of one image */
    float *conv2;   /* (5, 5, 32) of one image */
    float *dconv2;  /* (batch, 5, 5, 32) */
    float *pool2;   /* (batch, 512) */
    float *dpool2;  /* (512) of one image */
    float *hidden;  /* (batch, 32), then its gradient */
    float *fixed;   /* (n, 32): hidden values of all samples, where only the last layer moves */
    float *logits;  /* (batch, padded), then their gradient */
    float *w2t;     /* (4 rows of taps, 32 out, 4 taps of 16 in) */
    float *g2t;     /* its gradient */
    float *w3t;     /* (32, 512) */
    float *gradient;
    int32_t *from1; /* (batch, 12, 12, 16) which of the four a maximum came from; 4: below zero */
    int32_t *from2; /* (batch, 4, 4, 32) */
    void *block;
    size_t bytes;
} space;

static _Thread_local space shared;

static size_t rounded(size_t bytes) { return (bytes + 63) / 64 * 64; }

/* The buffers of this thread, kept between calls. NULL when there is no memory. */
static space *reserve(size_t n, size_t batch, size_t padded) {
    const size_t counts[] = {n * PAD * PAD, C1 * C1 * 16, batch * P1 * P1 * 16, P1 * P1 * 16, C2 * C2 * OUT2,
                             batch * C2 * C2 * OUT2, batch * FLAT, FLAT, batch * HIDDEN, n * HIDDEN, batch * padded,
                             TAPS2 * IN2 * OUT2, TAPS2 * IN2 * OUT2, FLAT * HIDDEN, W4 + 33 * padded};
    float **places[] = {&shared.images, &shared.conv1, &shared.pool1, &shared.dpool1, &shared.conv2,
                        &shared.dconv2, &shared.pool2, &shared.dpool2, &shared.hidden, &shared.fixed, &shared.logits,
                        &shared.w2t, &shared.g2t, &shared.w3t, &shared.gradient};
    const size_t number = sizeof counts / sizeof *counts;
    size_t bytes = 4 * rounded(batch * P1 * P1 * 16) + 4 * rounded(batch * FLAT) + rounded(n * PAD);
    for (size_t i = 0; i < number; i++) bytes += rounded(4 * counts[i]);
    if (bytes > shared.bytes) {
        free(shared.block);
        shared.bytes = 0;
        if (posix_memalign(&shared.block, 64, bytes)) { shared.block = NULL; return NULL; }
        shared.bytes = bytes;
    }
    char *at = shared.block;
    for (size_t i = 0; i < number; i++) { *places[i] = (float *)at; at += rounded(4 * counts[i]); }
    shared.from1 = (int32_t *)at;
    shared.from2 = shared.from1 + rounded(batch * P1 * P1 * 16);
    shared.drawn = (uint8_t *)(shared.from2 + rounded(batch * FLAT));
    return &shared;
}

static void pad_images(const float *inputs, size_t n, float *images, uint8_t *drawn) {
    memset(images, 0, n * PAD * PAD * sizeof(float));
    memset(drawn, 0, n * PAD);
    for (size_t i = 0; i < n; i++)
        for (int y = 0; y < SIDE; y++) {
            const float *row = inputs + (i * SIDE + y) * SIDE;
            int any = 0;
            for (int x = 0; x < SIDE; x++) any |= row[x] != 0;
            drawn[i * PAD + y + 3] = any;
            memcpy(images + i * PAD * PAD + (y + 3) * PAD + 3, row, SIDE * sizeof(float));
        }
}

/* ---- forward ---- */

/* `count` places of a row, from the `first` on. */
INLINE void convolve1_places(const float *image, const uint8_t *drawn, const float *w, float *out, const int y,
                             const int first, const int count) {
    for (int ch = 0; ch < 16; ch += LANES) {
        vec sum[C1];
        UNROLL for (int x = 0; x < count; x++) sum[x] = load(w + B1 + ch);
        for (int r = 0; r < 8; r++) {
            const float *row = image + (2 * y + r) * PAD + 2 * first;
            if (!drawn[2 * y + r]) continue;
            for (int c = 0; c < 8; c++) {
                vec tap = load(w + W1 + (r * 8 + c) * 16 + ch);
                UNROLL for (int x = 0; x < count; x++) sum[x] += tap * row[2 * x + c];
            }
        }
        UNROLL for (int x = 0; x < count; x++) store(out + (y * C1 + first + x) * 16 + ch, sum[x]);
    }
}

static void convolve1(const float *image, const uint8_t *drawn, const float *w, float *out) {
    for (int y = 0; y < C1; y++) {
        convolve1_places(image, drawn, w, out, y, 0, PLACES);
        if (PLACES < C1) convolve1_places(image, drawn, w, out, y, PLACES, C1 - PLACES);
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
INLINE void pool(const float *in, const int side, const int channels, float *out, int32_t *from) {
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
                *(ivec *)(from + place) = code;
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

/* Images to hidden values: those `chosen`, or, if NULL, from the `first` on; `keep` what the backward pass needs. */
INLINE void forward(space *s, const float *w, const int64_t *chosen, size_t first, size_t batch, const int keep) {
    for (size_t b = 0; b < batch; b++) {
        const size_t b1 = b * P1 * P1 * 16, b2 = b * FLAT;
        const size_t image = chosen ? (size_t)chosen[b] : first + b;
        convolve1(s->images + image * PAD * PAD, s->drawn + image * PAD, w, s->conv1);
        if (keep) pool(s->conv1, C1, 16, s->pool1 + b1, s->from1 + b1);
        else pool_alone(s->conv1, C1, 16, s->pool1 + b1);
        convolve2(s->pool1 + b1, w, s->conv2);
        if (keep) pool(s->conv2, C2, OUT2, s->pool2 + b2, s->from2 + b2);
        else pool_alone(s->conv2, C2, OUT2, s->pool2 + b2);
    }
    dense(s->pool2, batch, w, s->hidden);
}

/* Hidden values to logits. */
static void last_forward(space *s, const float *w, size_t batch, size_t padded) {
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

/* A place takes the gradients of the pools that it is the maximum of: those above it first, then those beside it. */
INLINE void pool_backward(const float *gradient, const int32_t *from, const int side, const int channels, float *out) {
    static const int32_t nowhere[P1 * 16] __attribute__((aligned(64))) = {[0 ... P1 * 16 - 1] = 4}; /* no pools */
    const int pools = side - 1, row = pools * channels;
    for (int y = 0; y < side; y++) {
        const int32_t *above = y > 0 ? from + (y - 1) * row : nowhere, *beside = y < pools ? from + y * row : nowhere;
        const float *of_above = gradient + (y > 0 ? y - 1 : 0) * row, *of_beside = gradient + (y < pools ? y : 0) * row;
        for (int c = 0; c < channels; c += LANES) {
            vec left_above = zero(), left_beside = zero();
            float *to = out + y * side * channels + c;
            for (int x = 0; x < row; x += channels) {
                ivec a = *(const ivec *)(above + x + c);
                ivec b = *(const ivec *)(beside + x + c);
                vec u = load(of_above + x + c), v = load(of_beside + x + c);
                store(to + x, left_above + pick(a == 2, u, zero()) + left_beside + pick(b == 0, v, zero()));
                left_above = pick(a == 3, u, zero());
                left_beside = pick(b == 1, v, zero());
            }
            store(to + row, left_above + left_beside);
        }
    }
}

/* The gradients of the second convolution's output that are not zero, a quarter of them: by place, for those of its
 * input, and by channel, for those of its weights. `at`: where the vectors begin that one is multiplied with. */
typedef struct { int at; float slope; } term;
typedef struct {
    term of_place[C2 * C2][OUT2], of_output[OUT2][C2 * C2];
    int num_of_place[C2 * C2], num_of_output[OUT2];
} terms;

static void list_terms(const float *gradient, terms *list) {
    memset(list->num_of_output, 0, sizeof list->num_of_output);
    for (int p = 0; p < C2 * C2; p++) {
        const int corner = 2 * (p / C2 * P1 + p % C2) * IN2;
        int found = 0;
        for (int o = 0; o < OUT2; o++) { /* without a branch: what is zero is written over by the next */
            list->of_place[p][found] = (term){o * ROW2, gradient[p * OUT2 + o]};
            found += gradient[p * OUT2 + o] != 0;
        }
        list->num_of_place[p] = found;
        for (int i = 0; i < found; i++) {
            const int o = list->of_place[p][i].at / ROW2;
            list->of_output[o][list->num_of_output[o]++] = (term){corner, list->of_place[p][i].slope};
        }
    }
}

/* The gradient of its input, for one image: a row of taps at a time, so that their weights stay near. */
static void convolve2_input_backward(const terms *list, const float *w2t, float *out) {
    memset(out, 0, P1 * P1 * IN2 * sizeof(float));
    for (int ky = 0; ky < 4; ky++)
        for (int part = 0; part < ROW2; part += 4 * LANES)
            for (int p = 0; p < C2 * C2; p++) {
                const float *taps = w2t + ky * OUT2 * ROW2 + part;
                float *to = out + ((2 * (p / C2) + ky) * P1 + 2 * (p % C2)) * IN2 + part;
                vec sum[4] = {0};
                for (const term *t = list->of_place[p]; t < list->of_place[p] + list->num_of_place[p]; t++)
                    UNROLL for (int k = 0; k < 4; k++) sum[k] += load(taps + t->at + k * LANES) * t->slope;
                UNROLL for (int k = 0; k < 4; k++) store(to + k * LANES, load(to + k * LANES) + sum[k]);
            }
}

/* The gradient of its weights, for one image, added to the batch's: ROWS rows of taps of a channel at a time. */
static void convolve2_backward(const terms *list, const float *in, float *g2t) {
    for (int o = 0; o < OUT2; o++)
        for (int ky = 0; ky < 4; ky += ROWS)
            for (int part = 0; part < ROW2; part += 4 * LANES) {
                const float *from = in + ky * P1 * IN2 + part;
                float *taps = g2t + (ky * OUT2 + o) * ROW2 + part;
                vec sum[ROWS][4];
                UNROLL for (int r = 0; r < ROWS; r++)
                    UNROLL for (int k = 0; k < 4; k++) sum[r][k] = load(taps + r * OUT2 * ROW2 + k * LANES);
                for (const term *t = list->of_output[o]; t < list->of_output[o] + list->num_of_output[o]; t++)
                    UNROLL for (int r = 0; r < ROWS; r++)
                        UNROLL for (int k = 0; k < 4; k++)
                            sum[r][k] += load(from + t->at + r * P1 * IN2 + k * LANES) * t->slope;
                UNROLL for (int r = 0; r < ROWS; r++)
                    UNROLL for (int k = 0; k < 4; k++) store(taps + r * OUT2 * ROW2 + k * LANES, sum[r][k]);
            }
}

/* First convolution, one image: DOWN rows of eight taps at a time, added to the batch's gradient. */
static void convolve1_backward(const float *image, const uint8_t *drawn, const float *gradient, float *g) {
    for (int ch = 0; ch < 16; ch += LANES) {
        vec bias = load(g + B1 + ch);
        for (int p = 0; p < C1 * C1; p++) bias += load(gradient + p * 16 + ch);
        store(g + B1 + ch, bias);
        for (int r = 0; r < 8; r += DOWN) {
            vec sum[8 * DOWN];
            UNROLL for (int k = 0; k < 8 * DOWN; k++) sum[k] = load(g + W1 + (r * 8 + k) * 16 + ch);
            for (int y = 0; y < C1; y++) {
                const float *row = image + (2 * y + r) * PAD;
                if (!drawn[2 * y + r] && !drawn[2 * y + r + DOWN - 1]) continue;
                for (int x = 0; x < C1; x++) {
                    vec value = load(gradient + (y * C1 + x) * 16 + ch);
                    UNROLL for (int k = 0; k < 8 * DOWN; k++) sum[k] += value * row[(k / 8) * PAD + 2 * x + k % 8];
                }
            }
            UNROLL for (int k = 0; k < 8 * DOWN; k++) store(g + W1 + (r * 8 + k) * 16 + ch, sum[k]);
        }
    }
}

static void backward(space *s, const float *w, const int64_t *chosen, size_t batch) {
    terms list;
    dense_backward(s, batch);
    transpose(w + W3, FLAT, HIDDEN, s->w3t);
    for (int ky = 0; ky < 4; ky++) transpose(w + W2 + ky * ROW2 * OUT2, ROW2, OUT2, s->w2t + ky * ROW2 * OUT2);
    memset(s->gradient + W1, 0, (TAPS1 * 16 + 16) * sizeof(float));
    memset(s->g2t, 0, TAPS2 * IN2 * OUT2 * sizeof(float));
    for (size_t b = 0; b < batch; b++) {
        float *dconv2 = s->dconv2 + b * C2 * C2 * OUT2;
        dense_input_backward(s->hidden + b * HIDDEN, s->w3t, s->dpool2);
        pool_backward(s->dpool2, s->from2 + b * FLAT, C2, OUT2, dconv2);
        list_terms(dconv2, &list);
        convolve2_input_backward(&list, s->w2t, s->dpool1);
        convolve2_backward(&list, s->pool1 + b * P1 * P1 * 16, s->g2t);
        pool_backward(s->dpool1, s->from1 + b * P1 * P1 * 16, C1, 16, s->conv1);
        convolve1_backward(s->images + chosen[b] * PAD * PAD, s->drawn + chosen[b] * PAD, s->conv1, s->gradient);
    }
    sum_rows(s->dconv2, batch * C2 * C2, OUT2, s->gradient + B2);
    for (int ky = 0; ky < 4; ky++)
        transpose(s->g2t + ky * ROW2 * OUT2, OUT2, ROW2, s->gradient + W2 + ky * ROW2 * OUT2);
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

/* Whether all layers but the last one stay as they are, so that every sample has the same hidden values throughout. */
static int only_last_moves(const float *moving) {
    if (!moving) return 0;
    for (int i = 0; i < W4; i++)
        if (moving[i] > 0) return 0;
    return 1;
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
    pad_images(inputs, n, s->images, s->drawn);
    const int last_alone = only_last_moves(moving);
    const size_t moves = last_alone ? W4 : 0; /* parameters from here on */
    for (size_t first = 0; last_alone && first < n; first += batch_size) {
        const size_t batch = n - first < batch_size ? n - first : batch_size;
        forward(s, w, NULL, first, batch, 0);
        memcpy(s->fixed + first * HIDDEN, s->hidden, batch * HIDDEN * sizeof(float));
    }
    for (size_t epoch = 0; epoch < epochs; epoch++)
        for (size_t first = 0; first < n; first += batch_size) {
            const size_t batch = n - first < batch_size ? n - first : batch_size;
            const int64_t *chosen = orders + epoch * n + first;
            for (size_t b = 0; last_alone && b < batch; b++)
                memcpy(s->hidden + b * HIDDEN, s->fixed + chosen[b] * HIDDEN, HIDDEN * sizeof(float));
            if (!last_alone) forward(s, w, chosen, 0, batch, 1);
            last_forward(s, w, batch, padded);
            softmax_gradient(s->logits, targets, chosen, batch, outputs, padded);
            last_backward(s, w, batch, padded);
            if (!last_alone) backward(s, w, chosen, batch);
            descend(w + moves, s->gradient + moves, W4 + (HIDDEN + 1) * padded - moves, rate, proximal,
                    anchor ? anchor + moves : NULL, moving ? moving + moves : NULL);
        }
    return 0;
}

/* Adds to `sums` (2) the cross-entropy of a batch and how many of it are classified rightly. */
static void judge(const float *logits, const int64_t *targets, size_t batch, size_t outputs, size_t padded,
                  double *sums) {
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
int rrcluster_cnn_measure(const float *w, size_t k, const float *inputs, const int64_t *targets, size_t n,
                          size_t outputs, double *sums) {
    enum { AT_ONCE = 20 };
    const size_t padded = (outputs + 15) / 16 * 16, length = W4 + (HIDDEN + 1) * padded;
    space *s = reserve(AT_ONCE, AT_ONCE, padded);
    if (!s) return 1;
    memset(sums, 0, 2 * k * sizeof(double));
    for (size_t first = 0; first < n; first += AT_ONCE) {
        const size_t batch = n - first < AT_ONCE ? n - first : AT_ONCE;
        pad_images(inputs + first * SIDE * SIDE, batch, s->images, s->drawn);
        for (size_t model = 0; model < k; model++) {
            forward(s, w + model * length, NULL, 0, batch, 0);
            last_forward(s, w + model * length, batch, padded);
            judge(s->logits, targets + first, batch, outputs, padded, sums + 2 * model);
        }
    }
    return 0;
}
