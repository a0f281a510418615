/* pipeline.h -- a family: the recipe that wires networks, tokenizer and sampler. One file each in this room.
 */
#ifndef OQ_PIPELINES_PIPELINE_H
#define OQ_PIPELINES_PIPELINE_H

#include "media/image.h"
#include "nn/module.h"

typedef struct oq_request { /* one generation with every default filled in */
    const char *const *prompts;
    int n_prompts;
    const char *negative; /* NULL: the family's default */
    int64_t width, height;
    int steps;
    double guidance;
    uint64_t seed;
    int images_per_prompt;
    bool shared_noise; /* one generator draws the whole batch */
    int max_sequence_length;
    const float *sigmas; /* NULL: the schedule's own; else n_sigmas values, steps = n_sigmas */
    int n_sigmas;
    double cfg_normalization; /* 0: off */
    double cfg_truncation;    /* 1: never */
    int64_t frames;           /* of a video; pictures have 1 */
    double fps;               /* frames a second, for the file alone */
    double guidance_2;        /* of the second expert; NAN: the same */
    double flow_shift;        /* 0: the schedule's own */
    const oq_image *images;   /* pictures that the request begins with, as they are in their files */
    int n_images;
    double strength;  /* 0 to 1: how far the first of them is left behind */
    int vae_piece;    /* latent frames that the autoencoder works on at a time; 0: the family's own */
    int64_t vae_tile; /* pixels of a side of the tiles, or of the bands' height, in which it works; 0: the whole */
    int previews;     /* looks at the pictures before they are done, spread evenly over the steps */
    double true_cfg;  /* scale of guidance by a second forward, where `guidance` is embedded; 1: off */
} oq_request;

/* What of a request a family understands; the engine refuses options of others. */
enum {
    OQ_TAKES_FRAMES = 1u << 0,     /* num-frames, fps */
    OQ_TAKES_GUIDANCE_2 = 1u << 1, /* guidance-scale-2 */
    OQ_TAKES_FLOW_SHIFT = 1u << 2, /* flow-shift */
    OQ_TAKES_IMAGE = 1u << 3,      /* image */
    OQ_NEEDS_IMAGE = 1u << 4,      /* nothing runs without one */
    OQ_TAKES_TRUE_CFG = 1u << 5,   /* true-cfg-scale */
    OQ_TAKES_STRENGTH = 1u << 6,   /* strength: how far an image is left behind */
    OQ_TAKES_IMAGES = 1u << 7,     /* more than one image */
    OQ_SIZED_BY_IMAGE = 1u << 8,   /* the first image's size is the default, cut to multiples */
    OQ_GUIDED_ABOVE_0 = 1u << 9,   /* a guidance-scale above 0 takes a second forward against the negative prompt */
    OQ_GUIDED_ABOVE_1 = 1u << 10,  /* one above 1 does */
    OQ_GUIDED_IF_ASKED = 1u << 11  /* and only where there is a negative prompt */
};

typedef struct oq_output { /* what run fills: host memory that the caller sized */
    uint8_t *pixels;       /* [n_items, frames, height, width, 3] */
    double *step_s;        /* [steps]; NULL: not wanted */
    double text_s, denoise_s, decode_s;
} oq_output;

typedef struct oq_pipeline_component {
    const char *name; /* "transformer" */
    bool quantizable;
    bool encoder;
    bool wide; /* float32 in every run, as the original's recipe has it; `run` sets ex->compute for it */
    /* Tells the network what of it this family never runs (it declares that as unused); NULL: all of it is run. */
    void (*trim)(const oq_json *model_index, void *self);
    bool
        optional; /* a folder may lack it (model_index.json names none): its entry of `modules` is NULL then */
} oq_pipeline_component;

typedef struct oq_pipeline_defaults {
    int64_t width, height; /* 0: the VAE's sample_size */
    int steps;
    double guidance;
    int max_sequence_length;
    int multiple_px; /* width and height are multiples of it */
    int64_t frames;  /* 0: pictures */
    double fps;
} oq_pipeline_defaults;

typedef struct oq_pipeline_setup { /* facts that init reads */
    const char *folder;            /* the model's */
    const oq_json *model_index;
    const oq_json *scheduler; /* scheduler_config.json */
    const oq_json *vae;       /* config.json of the VAE */
    void *const *modules;     /* self of each component, in the order of `components` */
    bool dummy;               /* weights without a file: a folder without tokenizer files will do */
} oq_pipeline_setup;

typedef struct oq_pipeline_recipe { /* a quantization that this family bears well: --recipe NAME */
    const char *name;     /* "careful8" */
    const char *spec;     /* what --quantization would take */
    const char *evidence; /* for people: measured where, with which figures */
} oq_pipeline_recipe;

typedef struct oq_pipeline_type {
    const char *name;       /* "z-image" */
    const char *class_name; /* "ZImagePipeline" */
    const char *task;       /* "text-to-image" */
    const char *help;
    unsigned takes; /* OQ_TAKES_* */
    const oq_pipeline_component *components;
    size_t n_components;
    const oq_pipeline_recipe *recipes; /* ended by an empty row; NULL: none */
    oq_pipeline_defaults defaults;
    const char *prompt_before, *prompt_after; /* the template around a prompt */
    size_t self_bytes;
    oq_status (*init)(oq_env *env, const oq_pipeline_setup *setup, void *self); /* scheduler, tokenizer */
    void (*deinit)(oq_env *env, void *self);
    /* Defaults that depend on the model at hand (distilled or not), over the row's; NULL: none do. */
    void (*defaults_for)(const void *self, oq_pipeline_defaults *defaults);
    /* The size that a request with pictures has where it asks for none; NULL: see OQ_SIZED_BY_IMAGE. */
    void (*size_by_images)(const void *self, const oq_request *request, int64_t *width, int64_t *height);
    /* Refuses a request that cannot run (sizes, lengths, NaN) with OQ_E_ARG and the numbers. */
    oq_status (*check)(oq_env *env, const void *self, const oq_request *request);
    /* Measure mode (ex->measure): the same walk without arithmetic; out may be NULL. */
    oq_status (*run)(oq_exec *ex, const void *self, const oq_request *request, oq_output *out);
} oq_pipeline_type;

extern const oq_pipeline_type *const oq_pipeline_list[]; /* pipeline_list.c */
extern const oq_module_type *const oq_module_list[];     /* module_list.c */
const oq_pipeline_type *oq_pipeline_find(const char *class_name);
const oq_module_type *oq_module_find(const char *class_name);

#endif
