/* stages.h -- the tensors of a run, kept in the order in which they were computed, and their comparison with
 * golden tensors. A golden tensor is named as its stage, or so that the name tells how it was thinned out: K
 * whole, or (vae.*) every 4th or 8th pixel in both axes K@s      every s-th value of the flattened stage K +
 * K#rows   the rows that K#rows lists K.norms + K.norms#rows   the lengths of those rows of stage K */
#ifndef OQ_TESTS_STAGES_H
#define OQ_TESTS_STAGES_H

#include "ckpt/ckpt.h"
#include "omniq/omniq.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* OMNIQ_PARITY_CPU and OMNIQ_PARITY_DEVICE: the same tests at another level, on another machine. */
static inline oq_status parity_place(oq_options *options)
{
    const char *const cpu = getenv("OMNIQ_PARITY_CPU"), *const device = getenv("OMNIQ_PARITY_DEVICE");
    const oq_status st = cpu ? oq_options_set(options, "cpu", cpu) : OQ_OK;
    return st == OQ_OK && device ? oq_options_set(options, "device", device) : st;
}

/* A device adds in another order than the original did on a CPU: float32 stages are within 1e-4 there. */
static inline double parity_bound(double bound, bool fp32)
{
    const double device = fp32 && getenv("OMNIQ_PARITY_DEVICE") ? 1e-4 : 0;
    return bound > device ? bound : device;
}

typedef struct stage {
    char key[96];
    int64_t shape[8], n;
    int n_dims;
    bool whole_numbers; /* int32 kept as float: exact below 2^24 */
    float *values;
} stage;

typedef struct stages {
    stage *at;
    size_t n, capacity;
} stages;

static inline void stages_free(stages *s)
{
    for (size_t i = 0; i < s->n; i++) free(s->at[i].values);
    free(s->at);
    *s = (stages){0};
}

/* An oq_trace_sink. Pictures come with the result; they are not kept. */
static inline oq_status stages_keep(void *user, const char *key, const oq_dtype *dtype, const void *data,
                                    const int64_t *shape, int n_dims)
{
    stages *s = user;
    if (dtype == &oq_dtype_u8) return OQ_OK;
    if (s->n == s->capacity) {
        s->capacity = s->capacity ? 2 * s->capacity : 64;
        s->at = realloc(s->at, s->capacity * sizeof *s->at);
        if (!s->at) abort();
    }
    stage *g = &s->at[s->n++];
    *g = (stage){.n_dims = n_dims, .n = 1, .whole_numbers = !dtype->floating};
    snprintf(g->key, sizeof g->key, "%s", key);
    for (int i = 0; i < n_dims; i++) g->n *= (g->shape[i] = shape[i]);
    g->values = malloc((size_t)g->n * sizeof(float));
    if (!g->values) abort();
    dtype->to_f32(g->values, data, (size_t)g->n);
    return OQ_OK;
}

static inline const stage *stages_find(const stages *s, const char *key)
{
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->at[i].key, key) == 0) return &s->at[i];
    return NULL;
}

/* |a - b| / |b| */
typedef struct distance {
    double difference, length;
    int64_t n;
} distance;

static inline void distance_add(distance *d, double a, double b)
{
    d->difference += (a - b) * (a - b);
    d->length += b * b;
    d->n++;
}

static inline double distance_relative(const distance *d)
{
    return d->length > 0 ? sqrt(d->difference / d->length) : sqrt(d->difference);
}

static inline double golden_value(const oq_ckpt_tensor *g, int64_t i)
{
    float x;
    g->dtype->to_f32(&x, g->data + (size_t)i * g->dtype->bytes, 1);
    return (double)x;
}

static inline void compare_whole(const stage *s, const oq_ckpt_tensor *g, distance *d)
{
    for (int64_t i = 0; i < g->elems && i < s->n; i++)
        distance_add(d, (double)s->values[i], golden_value(g, i));
}

static inline void compare_every(const stage *s, const oq_ckpt_tensor *g, int64_t step, distance *d)
{
    for (int64_t i = 0; i < g->elems && i * step < s->n; i++)
        distance_add(d, (double)s->values[i * step], golden_value(g, i));
}

/* [B, C, H, W] against every step-th pixel. */
static inline void compare_grid(const stage *s, const oq_ckpt_tensor *g, int64_t step, distance *d)
{
    const int64_t H = s->shape[2], W = s->shape[3], h = g->dim[2], w = g->dim[3];
    if ((H + step - 1) / step != h || (W + step - 1) / step != w) return;
    for (int64_t i = 0; i < g->elems; i++) {
        const int64_t plane = i / (h * w), y = i / w % h, x = i % w;
        distance_add(d, (double)s->values[(plane * H + y * step) * W + x * step], golden_value(g, i));
    }
}

static inline void compare_rows(const stage *s, const oq_ckpt_tensor *g, const oq_ckpt_tensor *rows,
                                bool norms, distance *d)
{
    const int64_t width = s->shape[1];
    for (int64_t i = 0; i < rows->elems; i++) {
        const float *row = s->values + (int64_t)golden_value(rows, i) * width;
        double sum = 0;
        for (int64_t j = 0; j < width; j++) {
            sum += (double)row[j] * (double)row[j];
            if (!norms) distance_add(d, (double)row[j], golden_value(g, i * width + j));
        }
        if (norms) distance_add(d, sqrt(sum), golden_value(g, i));
    }
}

/* Compares stage s of `run` with the golden tensor that it has, if any; false: none. */
static inline bool stage_compare(const oq_ckpt *golden, const char *run, const stage *s, distance *out)
{
    char name[160], rows_name[176];
    *out = (distance){0};
    for (int norms = 0; norms < 2; norms++) {
        snprintf(name, sizeof name, "%s%s%s", run, s->key, norms ? ".norms" : "");
        snprintf(rows_name, sizeof rows_name, "%s#rows", name);
        const oq_ckpt_tensor *g = oq_ckpt_find(golden, name), *rows = oq_ckpt_find(golden, rows_name);
        if (g && rows) {
            compare_rows(s, g, rows, norms != 0, out);
            return true;
        }
        if (g && norms == 0 && g->n_dims == 4 && s->n_dims == 4 && g->elems != s->n)
            compare_grid(s, g, strstr(s->key, ".mid") || strstr(s->key, "logvar") ? 4 : 8, out);
        else if (g && norms == 0)
            compare_whole(s, g, out);
        if (g) return true;
    }
    const size_t n = (size_t)snprintf(name, sizeof name, "%s%s@", run, s->key);
    for (size_t i = 0; i < golden->n_tensors; i++) {
        const oq_ckpt_tensor *g = &golden->tensors[i];
        if (strncmp(g->name, name, n) != 0) continue;
        compare_every(s, g, atoll(g->name + n), out);
        return true;
    }
    return false;
}

#endif
