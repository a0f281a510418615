/* recognize.c -- which network a weight file holds: each network's signature, below any prefix that people's tools put
 * in front of names. */
#include "engine/recognize.h"

#include "base/names.h"
#include "lora/lora_names.h"
#include "pipelines/pipeline.h"

#include <stdio.h>
#include <string.h>

/* '*' is one component. Prefixes of wrappers that a network's own name rules know ("model.") stand behind. */
static const char *const prefixes[] = {
    "model.diffusion_model.",
    "diffusion_model.",
    "transformer.",
    "net.",
    "text_encoders.*.transformer.",
    "text_encoders.*.",
    "text_encoder.",
    "cond_stage_model.transformer.",
    "cond_stage_model.",
    "conditioner.embedders.*.transformer.",
    "first_stage_model.",
    "vae.",
    "module.",
    "model.",
};

/* Networks that people have files of and that are not in the list of modules (yet): named, not run. */
static const struct stranger {
    const char *signature, *what;
} strangers[] = {
    {"txt_in.individual_token_refiner", "transformer (HunyuanVideo)"},
    {"joint_blocks.0.x_block.attn.qkv", "transformer (Stable Diffusion 3)"},
    {"cap_embedder.1,layers.0.adaLN_modulation.1", "transformer (Lumina 2)"},
    {"input_blocks.0.0,label_emb.0.0", "UNet (Stable Diffusion XL)"},
    {"input_blocks.0.0,middle_block.0.in_layers.0", "UNet (Stable Diffusion 1 or 2)"},
    {"layers.0.self_attn.q_proj", "language model"},
    {"blk.0.attn_q,!blk.0.attn_q.bias,!blk.0.attn_q_norm,!blk.0.post_attention_norm",
     "language model of llama.cpp (Llama, Mistral), whose rows of q and k stand in another order than "
     "anything that this build reads"},
    {"blk.0.attn_q", "language model (GGUF names)"},
};

/* The prefix at the beginning of `name` that the pattern stands for; false: does not fit. */
static bool prefix_of(const char *pattern, const char *name, char *out, size_t n)
{
    const char *begin = name;
    for (; *pattern; pattern++) {
        if (*pattern == '*') {
            const size_t length = strcspn(name, ".");
            if (!length) return false;
            name += length;
        } else if (*name++ != *pattern) {
            return false;
        }
    }
    const size_t length = (size_t)(name - begin);
    if (length >= n) return false;
    memcpy(out, begin, length);
    out[length] = '\0';
    return true;
}

static bool is_elsewhere(const char *name)
{
    char prefix[128];
    for (size_t i = 0; i < OQ_COUNT(prefixes); i++)
        if (prefix_of(prefixes[i], name, prefix, sizeof prefix)) return true;
    return false;
}

/* Are all names of the signature there, below the prefix, and none of those with '!'? */
static bool has_all(const oq_ckpt *ckpt, const char *prefix, const char *signature)
{
    char word[256], name[512];
    for (size_t i = 0; oq_csv_word(signature, i, word, sizeof word); i++) {
        const bool absent = *word == '!';
        snprintf(name, sizeof name, "%s%s", prefix, word + absent);
        if (oq_ckpt_any_below(ckpt, name) == absent) return false;
    }
    return true;
}

static bool is_module(const oq_ckpt *ckpt, const char *prefix, const oq_module_type *m)
{
    for (size_t i = 0; m->signatures && m->signatures[i]; i++)
        if (has_all(ckpt, prefix, m->signatures[i])) return true;
    return false;
}

/* What is below one prefix: `only`, or NULL: the first that fits, strangers last. */
static bool look_below(const oq_ckpt *ckpt, const char *prefix, const oq_module_type *only,
                       oq_recognized *out)
{
    for (const oq_module_type *const *m = oq_module_list; *m; m++)
        if ((!only || *m == only) && is_module(ckpt, prefix, *m)) {
            *out = (oq_recognized){.module = *m, .what = (*m)->what ? (*m)->what : (*m)->name};
            snprintf(out->prefix, sizeof out->prefix, "%s", prefix);
            return true;
        }
    for (size_t i = 0; !only && i < OQ_COUNT(strangers); i++)
        if (has_all(ckpt, prefix, strangers[i].signature)) {
            *out = (oq_recognized){.what = strangers[i].what};
            snprintf(out->prefix, sizeof out->prefix, "%s", prefix);
            return true;
        }
    return false;
}

static bool look(const oq_ckpt *ckpt, const oq_module_type *only, oq_recognized *out)
{
    char last[128], prefix[128];
    if (look_below(ckpt, "", only, out)) return true;
    for (size_t p = 0; p < OQ_COUNT(prefixes); p++) {
        *last = '\0';
        for (size_t i = 0; i < ckpt->n_tensors; i++) {
            if (!prefix_of(prefixes[p], ckpt->tensors[i].name, prefix, sizeof prefix)) continue;
            if (strcmp(prefix, last) == 0) continue;
            memcpy(last, prefix, sizeof last);
            if (look_below(ckpt, prefix, only, out)) return true;
        }
    }
    return false;
}

oq_recognized oq_recognize(const oq_ckpt *ckpt, const oq_module_type *wanted)
{
    oq_recognized out = {0};
    if (wanted && look(ckpt, wanted, &out)) return out;
    look(ckpt, NULL, &out);
    return out;
}

static const char *article(const char *what)
{
    return strchr("aeiouAEIO", *what) ? "an" : "a";
}

/* All tensors have names of an adapter's parts. */
static bool is_adapter(const oq_ckpt *ckpt)
{
    for (size_t i = 0; i < ckpt->n_tensors; i++) {
        oq_lora_role role;
        const char *foreign = NULL;
        if (!oq_lora_key(ckpt->tensors[i].name, &role, &foreign)) return false;
    }
    return ckpt->n_tensors > 0;
}

oq_status oq_recognize_as(oq_env *env, oq_ckpt *ckpt, const oq_module_type *wanted, const char *slot)
{
    const oq_recognized found = oq_recognize(ckpt, wanted);
    const char *needs = wanted->what ? wanted->what : wanted->class_names[0];
    if (found.module == wanted)
        return *found.prefix ? oq_ckpt_narrow(env, ckpt, found.prefix, is_elsewhere) : OQ_OK;
    if (!wanted->signatures && !found.module) return OQ_OK; /* the plan's account tells what does not fit */
    if (found.what)
        return oq_fail(env, OQ_E_MISMATCH, "%s '%s': this is %s %s, the model needs %s %s", slot, ckpt->path,
                       article(found.what), found.what, article(needs), needs);
    if (ckpt->n_tensors == 0)
        return oq_fail(env, OQ_E_MISMATCH, "%s '%s': holds no tensor, the model needs %s %s", slot,
                       ckpt->path, article(needs), needs);
    if (is_adapter(ckpt))
        return oq_fail(
            env, OQ_E_MISMATCH,
            "%s '%s': this is an adapter ('%s'), which goes beside a model: --lora; the model needs "
            "%s %s here",
            slot, ckpt->path, ckpt->tensors[0].name, article(needs), needs);
    return oq_fail(
        env, OQ_E_MISMATCH,
        "%s '%s': its %zu tensors (the first is '%s') are no network that this build knows, the model "
        "needs %s %s",
        slot, ckpt->path, ckpt->n_tensors, ckpt->n_tensors ? ckpt->tensors[0].name : "", article(needs),
        needs);
}

bool oq_module_has_class(const oq_module_type *module, const char *name)
{
    for (size_t i = 0; name && module->class_names[i]; i++)
        if (strcmp(module->class_names[i], name) == 0) return true;
    return false;
}

const char *oq_usual_component(const oq_module_type *module)
{
    if (strncmp(module->name, "te_", 3) == 0) return "text_encoder";
    return strncmp(module->name, "vae_", 4) == 0 ? "vae" : "transformer";
}
