/* Where the time of one compiled training step goes (batch 20, one core), beside the machine's multiply-add peak.
 * Images of random numbers, so no row of them is skipped; GFLOP/s count what is computed, zeros included.
 *
 * cc -O3 -march=native -std=gnu11 -fno-math-errno -fno-trapping-math research/benchmarks/cnn_parts.c -o /tmp/cnn_parts -lm
 * By processor time of the thread, best of many: a busy machine hardly changes it.
 */

#include "../rrcluster_research/fast_cnn/cnn.c"

#include <stdio.h>
#include <time.h>

enum { BATCH = 20, PADDED = 16, LENGTH = W4 + 33 * PADDED };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

#define MEASURE(name, flops, code)                                                            \
    do {                                                                                      \
        double best = 1e9;                                                                    \
        for (int repeat = 0; repeat < 40; repeat++) {                                         \
            double began = now();                                                             \
            for (int i = 0; i < 5; i++) { code; __asm__ volatile("" ::: "memory"); }          \
            began = (now() - began) / 5;                                                      \
            if (began < best) best = began;                                                   \
        }                                                                                     \
        printf("%-38s %7.1f us %7.1f GFLOP/s\n", name, best * 1e6, (flops) / best * 1e-9);    \
    } while (0)

#define EACH(code) for (size_t b = 0; b < BATCH; b++) code

int main(void) {
    static float w[LENGTH];
    space *s = reserve(60, BATCH, PADDED);
    int64_t chosen[BATCH], targets[60];
    if (!s) return 1;
    for (int i = 0; i < LENGTH; i++) w[i] = (i * 2654435761u % 1009) / 1e4f - 0.05f;
    for (int i = 0; i < 60 * PAD * PAD; i++) s->images[i] = (i * 2654435761u % 1009) / 1e3f - 0.5f;
    memset(s->drawn, 1, 60 * PAD);
    for (int i = 0; i < 60; i++) targets[i] = i % 10;
    for (int i = 0; i < BATCH; i++) chosen[i] = 3 * i;
    const double c1 = 2. * C1 * C1 * 64 * 16 * BATCH, c2 = 2. * 25 * 256 * 32 * BATCH, d = 2. * FLAT * HIDDEN * BATCH;
    vec sums[14];
    for (int k = 0; k < 14; k++) sums[k] = load(w + 16 * k);
    vec factor = load(w);
    MEASURE("multiply-adds in registers", 2. * LANES * 14 * 20000, for (int i = 0; i < 20000; i++) {
        UNROLL for (int k = 0; k < 14; k++) sums[k] += factor * sums[k];
        __asm__ volatile("" : "+x"(factor));
    });
    MEASURE("a whole training step", 2 * c1 + 3 * c2 + 3 * d, {
        forward(s, w, chosen, 0, BATCH, 1);
        last_forward(s, w, BATCH, PADDED);
        softmax_gradient(s->logits, targets, chosen, BATCH, 10, PADDED);
        last_backward(s, w, BATCH, PADDED);
        backward(s, w, chosen, BATCH);
        descend(w, s->gradient, LENGTH, 0, 0, NULL, NULL);
    });
    MEASURE("first convolution, forward", c1,
            EACH(convolve1(s->images + chosen[b] * PAD * PAD, s->drawn + chosen[b] * PAD, w, s->conv1)));
    MEASURE("first pool", 0, EACH(pool(s->conv1, C1, 16, s->pool1 + b * P1 * P1 * 16, s->from1 + b * P1 * P1 * 16)));
    MEASURE("second convolution, forward", c2, EACH(convolve2(s->pool1 + b * P1 * P1 * 16, w, s->conv2)));
    MEASURE("second pool", 0, EACH(pool(s->conv2, C2, OUT2, s->pool2 + b * FLAT, s->from2 + b * FLAT)));
    MEASURE("dense, forward", d, dense(s->pool2, BATCH, w, s->hidden));
    MEASURE("forward without records", c1 + c2 + d, forward(s, w, NULL, 0, BATCH, 0));
    MEASURE("dense, weights", d, dense_backward(s, BATCH));
    MEASURE("dense, input", d, EACH(dense_input_backward(s->hidden + b * HIDDEN, s->w3t, s->dpool2)));
    MEASURE("second pool, backward", 0,
            EACH(pool_backward(s->dpool2, s->from2 + b * FLAT, C2, OUT2, s->dconv2 + b * C2 * C2 * OUT2)));
    static terms list;
    MEASURE("second convolution, lists of terms", 0, EACH(list_terms(s->dconv2 + b * C2 * C2 * OUT2, &list)));
    MEASURE("second convolution, input", c2, EACH(convolve2_input_backward(&list, s->w2t, s->dpool1)));
    MEASURE("second convolution, weights", c2,
            EACH(convolve2_backward(&list, s->pool1 + b * P1 * P1 * 16, s->g2t)));
    MEASURE("first pool, backward", 0, EACH(pool_backward(s->dpool1, s->from1 + b * P1 * P1 * 16, C1, 16, s->conv1)));
    MEASURE("first convolution, weights", c1,
            EACH(convolve1_backward(s->images + chosen[b] * PAD * PAD, s->drawn + chosen[b] * PAD, s->conv1,
                                    s->gradient)));
    MEASURE("SGD step", 0, descend(w, s->gradient, LENGTH, 0, 0, NULL, NULL));
    float left = 0;
    for (int k = 0; k < 14; k++) left += sums[k][0];
    return left > 1e30f;
}
