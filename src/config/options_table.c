/* options_table.c -- every option of every command, once: flag, JSON key, bounds, default, help and
 * documentation come from these rows. A row belongs to the commands it names; two rows may share an alias
 * only if no command takes both. Names people know from elsewhere that this build does not have yet stand at
 * the end with their reason. */
#include "config/options.h"

#define ALL                                                                                                  \
    "generate,plan,inspect,compare,quantize,dequantize,recipe,tokenize,serve,bench,methods,models,devices"
#define MAKES  "generate,plan,serve"   /* commands that take one model */
#define RUNS   MAKES ",compare,recipe" /* the same and the one that takes two */
#define MODELS RUNS ",bench"
#define ASKS   RUNS ",quantize" /* commands that run requests; quantize: to calibrate */
#define PROMPT "generate,plan,compare,recipe,quantize" /* serve: each request brings its own */

const char *const oq_option_commands = ALL;

static const oq_option_info rows[] = {
    /* ---- model --------------------------------------------------------------------------------------------- */
    {"model", "m", OQ_OPTION_STRING, 0, 0, NULL, NULL, MODELS ",tokenize", "model", "DIR",
     "model folder in diffusers' layout, or org/name in the Hugging Face cache"},
    {"model", "m", OQ_OPTION_STRING, 0, 0, NULL, NULL, "quantize", "model", "DIR",
     "model folder that has the configuration of a lone weight file, and runs it to calibrate"},
    {"model", "m", OQ_OPTION_STRING, 0, 0, NULL, NULL, "inspect", "model", "DIR",
     "model whose component a lone weight file or folder would be: it is judged as 'generate -m DIR' would "
     "take it"},
    {"reference-model", NULL, OQ_OPTION_STRING, 0, 0, NULL, "--model", "compare", "model", "DIR",
     "model of the reference run"},
    {"candidate-model", NULL, OQ_OPTION_STRING, 0, 0, NULL, "--model", "compare", "model", "DIR",
     "model of the candidate run"},
    {"variant", NULL, OQ_OPTION_STRING, 0, 0, NULL, NULL, RUNS ",bench,inspect,quantize,dequantize", "model",
     "NAME", "weights of this variant: NAME 'fp16' reads model.fp16.safetensors"},
    {"verify-against", NULL, OQ_OPTION_STRING, 0, 0, NULL, NULL, MAKES ",inspect", "model", "DIR",
     "plain weights that the quantized ones were made from: each layer's signal to noise is held against "
     "what "
     "its format gives; a layer far below is an error that names the likely cause"},
    {"load-format", NULL, OQ_OPTION_CHOICE, 0, 0, "default,dummy", "default", MAKES ",bench", "model", "WORD",
     "'dummy' needs only the config files and makes each weight from its name"},
    {"transformer", NULL, OQ_OPTION_STRING, 0, 0, NULL, "the model's", MAKES ",bench", "model", "FILE",
     "weights of the transformer from this file (or folder) instead; any prefix, diffusers' or original "
     "names"},
    {"transformer-2", NULL, OQ_OPTION_STRING, 0, 0, NULL, "the model's", MAKES ",bench", "model", "FILE",
     "the same for the second transformer of a cascade"},
    {"text-encoder", NULL, OQ_OPTION_STRING, 0, 0, NULL, "the model's", MAKES ",bench", "model", "FILE",
     "weights of the text encoder from this file (or folder) instead"},
    {"text-encoder-2", NULL, OQ_OPTION_STRING, 0, 0, NULL, "the model's", MAKES ",bench", "model", "FILE",
     "the same for the second text encoder"},
    {"vae", NULL, OQ_OPTION_STRING, 0, 0, NULL, "the model's", MAKES ",bench", "model", "FILE",
     "weights of the autoencoder from this file (or folder) instead"},
    {"candidate-transformer", "transformer", OQ_OPTION_STRING, 0, 0, NULL, "the model's", "compare", "model",
     "FILE", "weights of the candidate's transformer from this file (or folder) instead"},
    {"candidate-text-encoder", "text-encoder", OQ_OPTION_STRING, 0, 0, NULL, "the model's", "compare",
     "model", "FILE", "weights of the candidate's text encoder from this file (or folder) instead"},
    {"candidate-vae", "vae", OQ_OPTION_STRING, 0, 0, NULL, "the model's", "compare", "model", "FILE",
     "weights of the candidate's autoencoder from this file (or folder) instead"},
    {"lora", NULL, OQ_OPTION_LIST, 0, 0, NULL, NULL, MAKES ",bench", "model", "FILE[:SCALE]",
     "adapter (LoRA, LoHa or LoKr under diffusers', PEFT's, kohya's or ComfyUI's names), beside weights of "
     "any "
     "format; may be repeated"},
    {"reference-load-format", NULL, OQ_OPTION_CHOICE, 0, 0, "default,dummy", "default", "compare", "model",
     "WORD", "load format of the reference run"},
    {"candidate-load-format", "load-format", OQ_OPTION_CHOICE, 0, 0, "default,dummy", "default", "compare",
     "model", "WORD", "load format of the candidate run"},
    {"tokenizer", NULL, OQ_OPTION_STRING, 0, 0, NULL, NULL, "tokenize", "model", "PATH",
     "tokenizer.json or spiece.model, or a folder of tokenizer files"},

    /* ---- request ------------------------------------------------------------------------------------------- */
    {"prompt", "p", OQ_OPTION_LIST, 0, 0, NULL, NULL, PROMPT ",tokenize", "request", "TEXT",
     "what to draw; given several times it is a batch"},
    {"prompt-file", NULL, OQ_OPTION_STRING, 0, 0, NULL, NULL, PROMPT, "request", "FILE",
     "prompts, one a line"},
    {"negative-prompt", "n", OQ_OPTION_STRING, 0, 0, NULL, NULL, ASKS, "request", "TEXT",
     "what to stay away from; needs guidance"},
    {"width", "W", OQ_OPTION_INT, 1, 65536, NULL, "the model's", ASKS, "request", "PX",
     "width of the picture"},
    {"height", "H", OQ_OPTION_INT, 1, 65536, NULL, "the model's", ASKS, "request", "PX",
     "height of the picture"},
    {"steps", "num-inference-steps", OQ_OPTION_INT, 1, 1000, NULL, "the model's", ASKS, "request", "N",
     "denoising steps"},
    {"guidance-scale", "cfg-scale", OQ_OPTION_REAL, 0, 1000, NULL, "the model's", ASKS, "request", "X",
     "strength of the prompt, as the family's pipeline in diffusers counts it"},
    {"seed", "s", OQ_OPTION_INT, -1, 9223372036854775807.0, NULL, "random; compare, quantize: 42", ASKS,
     "request", "N", "the noise; image i of a batch has seed + i; -1 is random"},
    {"batch-count", "b,num-images-per-prompt", OQ_OPTION_INT, 1, 1024, NULL, "1", ASKS, "request", "N",
     "images for each prompt"},
    {"batch-noise", NULL, OQ_OPTION_CHOICE, 0, 0, "own,shared", "own", ASKS, "request", "WORD",
     "'own': one generator per image; 'shared': one draws the whole batch"},
    {"rng", NULL, OQ_OPTION_CHOICE, 0, 0, "cpu", "cpu", ASKS, "request", "WORD",
     "generator of the noise: 'cpu' draws the numbers of torch's CPU generator"},
    {"sigmas", NULL, OQ_OPTION_STRING, 0, 0, NULL, "the schedule's", ASKS, "request", "CSV",
     "noise levels, from high to low; replaces --steps"},
    {"max-sequence-length", NULL, OQ_OPTION_INT, 1, 65536, NULL, "the family's", ASKS, "request", "N",
     "longest prompt in tokens"},
    {"cfg-normalization", NULL, OQ_OPTION_REAL, 0, 1000, NULL, "0", ASKS, "request", "X",
     "bound of the guided prediction's norm, in norms of the plain one; 0 is off"},
    {"cfg-truncation", NULL, OQ_OPTION_REAL, 0, 1, NULL, "1", ASKS, "request", "X",
     "no guidance beyond this share of the schedule's time"},
    {"strength", NULL, OQ_OPTION_REAL, 0, 1, NULL, "0.6", ASKS, "request", "X",
     "how far the result may leave the first --image behind; 1 keeps nothing of it"},
    {"true-cfg-scale", NULL, OQ_OPTION_REAL, 0, 1000, NULL, "1", ASKS, "request", "X",
     "guidance by a second forward with the negative prompt, for families whose guidance scale is embedded"},
    {"task", NULL, OQ_OPTION_CHOICE, 0, 0, "t2i", "t2i", "compare", "request", "WORD",
     "what is compared: pictures"},
    {"num-frames", NULL, OQ_OPTION_INT, 1, 100000, NULL, "the model's", ASKS, "request", "N",
     "frames of a video"},
    {"fps", "frame-rate", OQ_OPTION_REAL, 1, 240, NULL, "the family's", "generate,serve", "request", "X",
     "frames a second that a video's file asks for"},
    {"guidance-scale-2", NULL, OQ_OPTION_REAL, 0, 1000, NULL, "the first's", ASKS, "request", "X",
     "guidance scale of a second transformer, which takes the late steps"},
    {"flow-shift", NULL, OQ_OPTION_REAL, 1e-6, 1e6, NULL, "the schedule's", ASKS, "request", "X",
     "how far the schedule leans to high noise"},
    {"vae-tile", NULL, OQ_OPTION_INT, 0, 65536, NULL, "0", ASKS, "request", "PX",
     "autoencoder in parts, less memory: bands of so many rows with the same result (AutoencoderKL), or "
     "tiles of this side, "
     "blended over a quarter of it; 0 is the whole"},
    {"vae-frames", NULL, OQ_OPTION_INT, 0, 4096, NULL, "1", ASKS, "request", "N",
     "latent frames that a video is decoded at a time; the same frames come out"},
    {"image", "i", OQ_OPTION_LIST, 0, 0, NULL, NULL, PROMPT, "request", "FILE",
     "picture that the request begins with"},
    {"previews", NULL, OQ_OPTION_INT, 0, 1000, NULL, "0; 4 with --preview", "generate,plan", "request", "N",
     "looks at the picture before it is done, spread over the steps; each takes as long as a decoding"},
    {"template", NULL, OQ_OPTION_FLAG, 0, 0, NULL, NULL, "tokenize", "request", NULL,
     "apply the pipeline's prompt template first"},

    /* ---- quantization -------------------------------------------------------------------------------------- */
    {"quantization", NULL, OQ_OPTION_SPEC, 0, 0, NULL, NULL, MAKES ",bench,quantize", "quantization", "SPEC",
     "NAME, JSON or @FILE: one method, or a map from component to method"},
    {"quantization-config", NULL, OQ_OPTION_SPEC, 0, 0, NULL, NULL, MAKES ",bench,quantize", "quantization",
     "JSON|FILE", "the same as --quantization; a file needs no '@'"},
    {"ignored-layers", NULL, OQ_OPTION_STRING, 0, 0, NULL, NULL, MAKES ",bench,quantize", "quantization",
     "CSV", "layers that stay unquantized: names, dotted runs, globs, re:REGEX"},
    {"component", NULL, OQ_OPTION_LIST, 0, 0, NULL, NULL, MAKES ",bench,quantize", "quantization", "KEY=SPEC",
     "method of one component, added to the map; may be repeated"},
    {"attention-quantization", "diffusion-kv-cache-dtype", OQ_OPTION_CHOICE, 0, 0,
     "none,auto,float,fp8,mxfp8,mxfp4", "none", MAKES ",bench", "quantization", "WORD",
     "precision of Q, K and V in the transformer's attention, made on the fly"},
    {"attention-skip-steps", "diffusion-kv-cache-skip-steps", OQ_OPTION_STRING, 0, 0, NULL, NULL,
     MAKES ",bench", "quantization", "LIST", "steps whose attention stays plain, from 0: 0,1,38-39"},
    {"attention-skip-layers", "diffusion-kv-cache-skip-layers", OQ_OPTION_STRING, 0, 0, NULL, NULL,
     MAKES ",bench", "quantization", "LIST",
     "layers whose attention stays plain, by the first number of their name"},
    {"attention-sparsity", NULL, OQ_OPTION_REAL, 0, 0.999, NULL, "0", MAKES ",bench", "quantization", "X",
     "share of the key blocks of 128 tokens that each block of queries leaves out"},
    {"attention-sparse-steps", NULL, OQ_OPTION_STRING, 0, 0, NULL, "all", MAKES ",bench", "quantization",
     "A-B", "steps whose attention is sparse, from 0; '4-' is from step 4 on"},
    {"attention-sparse-skip-layers", NULL, OQ_OPTION_STRING, 0, 0, NULL, NULL, MAKES ",bench", "quantization",
     "LIST", "layers whose attention stays dense"},
    {"reference-quantization", NULL, OQ_OPTION_SPEC, 0, 0, NULL, "none", "compare", "quantization", "SPEC",
     "method of the reference run"},
    {"reference-quantization-config-json", "reference-quantization-config", OQ_OPTION_SPEC, 0, 0, NULL, NULL,
     "compare", "quantization", "JSON|FILE", "the same as an object; overrides method and ignored layers"},
    {"reference-ignored-layers", NULL, OQ_OPTION_STRING, 0, 0, NULL, NULL, "compare", "quantization", "CSV",
     "layers of the reference run that stay unquantized"},
    {"candidate-quantization", "quantization", OQ_OPTION_SPEC, 0, 0, NULL, "none", "compare", "quantization",
     "SPEC", "method of the candidate run"},
    {"candidate-quantization-config-json", "candidate-quantization-config,quantization-config",
     OQ_OPTION_SPEC, 0, 0, NULL, NULL, "compare", "quantization", "JSON|FILE",
     "the same as an object; overrides method and ignored layers"},
    {"candidate-ignored-layers", "ignored-layers", OQ_OPTION_STRING, 0, 0, NULL, NULL, "compare",
     "quantization", "CSV", "layers of the candidate run that stay unquantized"},
    {"reference-attention-quantization", NULL, OQ_OPTION_CHOICE, 0, 0, "none,auto,float,fp8,mxfp8,mxfp4",
     "none", "compare", "quantization", "WORD", "precision of the reference run's attention"},
    {"candidate-attention-quantization", "attention-quantization,diffusion-kv-cache-dtype", OQ_OPTION_CHOICE,
     0, 0, "none,auto,float,fp8,mxfp8,mxfp4", "none", "compare", "quantization", "WORD",
     "precision of the candidate run's attention"},
    {"candidate-attention-skip-steps", "attention-skip-steps,diffusion-kv-cache-skip-steps", OQ_OPTION_STRING,
     0, 0, NULL, NULL, "compare", "quantization", "LIST",
     "the candidate's steps whose attention stays plain"},
    {"candidate-attention-skip-layers", "attention-skip-layers,diffusion-kv-cache-skip-layers",
     OQ_OPTION_STRING, 0, 0, NULL, NULL, "compare", "quantization", "LIST",
     "the candidate's layers whose attention stays plain"},
    {"candidate-attention-sparsity", "attention-sparsity", OQ_OPTION_REAL, 0, 0.999, NULL, "0", "compare",
     "quantization", "X", "share of the key blocks that the candidate's attention leaves out"},
    {"candidate-attention-sparse-steps", "attention-sparse-steps", OQ_OPTION_STRING, 0, 0, NULL, "all",
     "compare", "quantization", "A-B", "the candidate's steps whose attention is sparse"},
    {"candidate-attention-sparse-skip-layers", "attention-sparse-skip-layers", OQ_OPTION_STRING, 0, 0, NULL,
     NULL, "compare", "quantization", "LIST", "the candidate's layers whose attention stays dense"},

    {"activation-scheme", NULL, OQ_OPTION_CHOICE, 0, 0, "method,static", "method", "quantize", "quantization",
     "WORD",
     "'static': quantized activations (NVFP4's too) get one scale a layer, measured while the source's model "
     "runs "
     "the prompts of --prompt or --prompt-file"},
    {"smoothquant", NULL, OQ_OPTION_FLAG, 0, 0, NULL, NULL, "quantize", "quantization", NULL,
     "INT8 layers divide the columns of x by what the prompts show to be large and multiply the weights by "
     "it; their "
     "activations are static"},
    {"smoothquant-alpha", NULL, OQ_OPTION_REAL, 0, 1, NULL, "0.5", "quantize", "quantization", "X",
     "how much of a column's size goes over to the weights: 0 none, 1 all"},
    {"gptq", NULL, OQ_OPTION_FLAG, 0, 0, NULL, NULL, "quantize", "quantization", NULL,
     "round integers in groups (w4a16) so that errors make up for each other on what layers take in while "
     "the prompts "
     "run"},
    {"gptq-damping", NULL, OQ_OPTION_REAL, 0, 1, NULL, "0.01", "quantize", "quantization", "X",
     "share of the inputs' mean square that is added to every column's: more trusts the prompts less"},
    {"desc-act", NULL, OQ_OPTION_CHOICE, 0, 0, "static_groups,true,false", "static_groups", "quantize",
     "quantization", "WORD",
     "the order in which --gptq rounds columns: 'true' those that are fed most first, in groups of that "
     "order (layout "
     "gptq alone holds it); 'static_groups' likewise, but groups stay neighbours; 'false' as they stand"},
    {"gptq-memory", NULL, OQ_OPTION_STRING, 0, 0, NULL, "a quarter of the machine's", "quantize",
     "quantization", "SIZE",
     "of the sums that are held at a time (4GiB); layers beyond it take further runs of the prompts"},
    {"recipe", NULL, OQ_OPTION_STRING, 0, 0, NULL, NULL, MAKES ",bench,quantize", "quantization", "NAME|FILE",
     "a recipe of the model's family ('omniq models -v' lists them), or a file of 'omniq recipe'"},
    {"budget", NULL, OQ_OPTION_STRING, 0, 0, NULL, "4.5bpw", "recipe", "quantization", "SIZE",
     "bits a weight ('4.5bpw') or bytes ('6GB', '700MiB') of all layers that may be quantized"},
    {"held-out-prompt", NULL, OQ_OPTION_LIST, 0, 0, NULL, NULL, "recipe", "quantization", "TEXT",
     "judge the recipe by this prompt, which is not searched on (repeatable); without it the last third of "
     "the prompts is held out"},
    {"methods", NULL, OQ_OPTION_STRING, 0, 0, NULL, "nvfp4,int3,int4,int4-g32,fp8-channel,int8,bf16",
     "recipe", "quantization", "CSV",
     "methods to choose from: names; int2, int3, int4 in groups of 64, int4-g32, int8-g128, int4z-g32 (with "
     "zero points); nf4, fp4, fp8-channel, fp8-block; GGUF's q4_0, q5_k, gguf-mxfp4, ...; bf16 always is "
     "one"},
    {"components", NULL, OQ_OPTION_STRING, 0, 0, NULL, NULL, "recipe", "quantization", "CSV",
     "search the layers of these components alone; others stay plain (default: all that may be quantized)"},
    {"measure-by", NULL, OQ_OPTION_CHOICE, 0, 0, "runs,forwards", "runs", "recipe", "quantization", "WORD",
     "exchange each layer in whole 'runs' (one a layer), or in three 'forwards', which costs less and tells "
     "less"},

    /* ---- comparison ---------------------------------------------------------------------------------------- */
    {"policy", NULL, OQ_OPTION_STRING, 0, 0, NULL, NULL, "compare", "comparison", "NAME|FILE",
     "judge by 'smoke', 'strict' or a JSON file of bounds, {\"psnr_db\":{\"min\":30}}, that each picture "
     "must keep; a miss exits with 3"},
    {"layers", NULL, OQ_OPTION_FLAG, 0, 0, NULL, NULL, "compare", "comparison", NULL,
     "output SNR of every quantized layer against the reference's layer on the same input"},
    {"warmup-runs", NULL, OQ_OPTION_INT, 0, 1000, NULL, "0", "compare", "comparison", "N",
     "runs of each side before the measured ones"},
    {"measure-runs", NULL, OQ_OPTION_INT, 1, 1000, NULL, "1", "compare", "comparison", "N",
     "measured runs of each side; the last one's pictures are compared"},
    {"output-json", NULL, OQ_OPTION_STRING, 0, 0, NULL, NULL, "compare", "comparison", "FILE",
     "write the whole report there"},
    {"save-output-dir", NULL, OQ_OPTION_STRING, 0, 0, NULL, NULL, "compare", "comparison", "DIR",
     "keep both sides' pictures and a side-by-side with the difference"},

    /* ---- output -------------------------------------------------------------------------------------------- */
    {"output", "o", OQ_OPTION_STRING, 0, 0, NULL, "omniq-SEED.png", "generate", "output", "FILE",
     "the picture (.png, .jpg, .webp) or video (.mp4, .webp, .y4m, no ending: a folder of frames); several "
     "become FILE_1.png, FILE_2.png, ...; '-' is standard output (PNG, Y4M)"},
    {"output", "o", OQ_OPTION_STRING, 0, 0, NULL, NULL, "quantize,dequantize", "output", "PATH",
     "a folder, or one weight file (.safetensors, .gguf) where the source is a component; appears whole or "
     "not "
     "at all"},
    {"layout", NULL, OQ_OPTION_STRING, 0, 0, NULL, "the first that fits", "quantize", "output", "NAME",
     "whose files: compressed-tensors, bitsandbytes, modelopt, comfy, auto-round, auto-round-awq, gptq, fp8, "
     "int8, "
     "quanto, torchao, gguf"},
    {"names", NULL, OQ_OPTION_CHOICE, 0, 0, "source,original", "source", "quantize", "output", "WORD",
     "names of a transformer's tensors: the source's, or those of the first release, which ComfyUI and "
     "stable-diffusion.cpp read"},
    {"dry-run", NULL, OQ_OPTION_FLAG, 0, 0, NULL, NULL, "recipe", "output", NULL,
     "list the methods' sizes and the runs that the search takes; measure nothing"},
    {"dry-run", NULL, OQ_OPTION_FLAG, 0, 0, NULL, NULL, "quantize", "output", NULL,
     "tell what would be written, write nothing"},
    {"force", NULL, OQ_OPTION_FLAG, 0, 0, NULL, NULL, "quantize,dequantize,recipe", "output", NULL,
     "replace an existing output"},
    {"dtype", NULL, OQ_OPTION_CHOICE, 0, 0, "bf16,f32", "bf16", "dequantize", "output", "TYPE",
     "type of decoded layers"},
    {"output", "o", OQ_OPTION_STRING, 0, 0, NULL, NULL, "recipe", "output", "FILE",
     "the recipe as JSON, for --recipe or --quantization @FILE"},
    {"show", NULL, OQ_OPTION_FLAG, 0, 0, NULL, NULL, "generate", "output", NULL,
     "draw the picture in the terminal: kitty, iTerm2, sixel or half blocks"},
    {"preview", NULL, OQ_OPTION_STRING, 0, 0, NULL, NULL, "generate", "output", "FILE",
     "write what the picture is like so far, over and over, while the work goes on"},
    {"from", NULL, OQ_OPTION_STRING, 0, 0, NULL, NULL, "generate", "output", "IMAGE",
     "repeat the run that made this picture; other flags change it"},
    {"no-metadata", NULL, OQ_OPTION_FLAG, 0, 0, NULL, NULL, "generate,serve", "output", NULL,
     "leave prompt and options out of the picture"},
    {"trace", NULL, OQ_OPTION_STRING, 0, 0, NULL, NULL, "generate", "output", "FILE.safetensors",
     "write every stage's tensors"},
    {"trace-keys", NULL, OQ_OPTION_STRING, 0, 0, NULL, "all", "generate", "output", "GLOB,...",
     "only the stages whose key matches"},
    {"tensor", NULL, OQ_OPTION_STRING, 0, 0, NULL, NULL, "inspect", "output", "NAME",
     "print a tensor's values"},
    {"layer", NULL, OQ_OPTION_STRING, 0, 0, NULL, NULL, "inspect", "output", "NAME",
     "print a quantized layer's dequantized values"},
    {"limit", NULL, OQ_OPTION_INT, 1, 1e9, NULL, "16", "inspect", "output", "N", "how many values"},
    {"jsonl", NULL, OQ_OPTION_FLAG, 0, 0, NULL, NULL, "tokenize", "output", NULL,
     "one JSON string a line in, one JSON array of ids a line out"},
    {"json", NULL, OQ_OPTION_FLAG, 0, 0, NULL, NULL, ALL, "output", NULL,
     "one JSON object on standard output"},

    /* ---- server -------------------------------------------------------------------------------------------- */
    {"host", NULL, OQ_OPTION_STRING, 0, 0, NULL, "127.0.0.1", "serve", "server", "ADDRESS",
     "address to listen at; 0.0.0.0 is every IPv4 one of the machine, :: every one"},
    {"port", NULL, OQ_OPTION_INT, 0, 65535, NULL, "8190", "serve", "server", "N",
     "port to listen at; 0 is a free one, which the first line of output tells"},
    {"api-key-file", NULL, OQ_OPTION_STRING, 0, 0, NULL, "$OMNIQ_API_KEY", "serve", "server", "FILE",
     "requests need the file's first line as bearer token"},
    {"served-model-name", NULL, OQ_OPTION_STRING, 0, 0, NULL, "the folder's name", "serve", "server", "NAME",
     "what requests call the model"},
    {"queue-limit", NULL, OQ_OPTION_INT, 0, 100000, NULL, "32", "serve", "server", "N",
     "requests that may wait for the one at work; further ones get status 429"},
    {"max-body", NULL, OQ_OPTION_INT, 1, 65536, NULL, "64", "serve", "server", "MIB",
     "largest body of a request, pictures included"},
    {"keep-results", NULL, OQ_OPTION_INT, 1, 100000, NULL, "16", "serve", "server", "N",
     "finished videos that stay in memory until they are fetched or deleted; the oldest goes first"},

    /* ---- benchmark ----------------------------------------------------------------------------------------- */
    {"only", NULL, OQ_OPTION_CHOICE, 0, 0, "kernels,layers,whole,blocks,formats", "the first three", "bench",
     "benchmark", "WORD",
     "one part of the benchmark; 'blocks' are single blocks of published transformers, with some GB of "
     "made-up weights; 'formats' (with --compare) are products of every format beside ggml and torch"},
    {"filter", NULL, OQ_OPTION_STRING, 0, 0, NULL, NULL, "bench", "benchmark", "GLOB",
     "only the kernels, blocks and whole runs ('generate int8') whose name matches; with --compare also "
     "operations ('conv3d'), formats and their peers ('q4_0', 'q4_* ggml') and pairs of runs ('generate int8 "
     "bf16')"},
    {"seconds", NULL, OQ_OPTION_REAL, 0.001, 60, NULL, "0.2", "bench", "benchmark", "X",
     "least time spent on one measurement"},
    {"compare", NULL, OQ_OPTION_FLAG, 0, 0, NULL, NULL, "bench", "benchmark", NULL,
     "beside torch and diffusers instead, in turns: the median of the ratios and its spread"},

    /* ---- run ----------------------------------------------------------------------------------------------- */
    {"threads", NULL, OQ_OPTION_INT, 0, 1024, NULL, "this process' cores", ALL, "run", "N",
     "threads of the command; a library user sets them in oq_env_params"},
    {"device", NULL, OQ_OPTION_STRING, 0, 0, NULL, "auto", MODELS ",quantize", "run", "NAME",
     "auto, cpu, cuda or cuda:N"},
    {"max-memory", NULL, OQ_OPTION_STRING, 0, 0, NULL, "all of the device's", MODELS ",quantize", "run",
     "SIZE",
     "of a device with memory of its own (12GiB): weights beyond it stay in host memory and come over when "
     "they are used"},
    {"cpu", NULL, OQ_OPTION_CHOICE, 0, 0,
     "auto,ref,avx2,avxvnni,avx512,avx512vnni,avx512bf16,amx,neon,dotprod,i8mm,bf16", "auto",
     MODELS ",quantize", "run", "LEVEL", "use no CPU feature above this level"},
    {"dtype", NULL, OQ_OPTION_CHOICE, 0, 0, "bf16,fp32", "bf16", MODELS, "run", "TYPE",
     "compute and activation type of unquantized parts"},
    {"quiet", "q", OQ_OPTION_FLAG, 0, 0, NULL, NULL, ALL, "run", NULL, "no progress, no warnings"},
    {"verbose", "v", OQ_OPTION_FLAG, 0, 0, NULL, NULL, ALL, "run", NULL,
     "explain decisions; plan: every layer"},
};

const oq_option_info *oq_option_list(size_t *count)
{
    if (count) *count = OQ_COUNT(rows);
    return rows;
}

#define LATER     "is not in this build yet"
#define VIDEO     "is for video, which is not in this build yet"
#define PARALLEL  "spreads work over several devices, which this build does not do"
#define LLM_CACHE "is about the cache of language models; diffusion has --attention-quantization"
#define SCHEDULE  "is the model's own here; --sigmas gives its noise levels, --flow-shift moves them"
#define OFFLOAD   "moves weights between memories, which this build does not do"

static const oq_option_later later[] = {
    {"kv-cache-dtype", LLM_CACHE},
    {"kv-cache-skip-steps", LLM_CACHE},
    {"kv-cache-skip-layers", LLM_CACHE},
    {"model-class-name", LATER},
    {"step-execution", LATER},
    {"tensor-parallel-size", PARALLEL},
    {"ulysses-degree", PARALLEL},
    {"ring-degree", PARALLEL},
    {"cfg-parallel-size", PARALLEL},
    {"vae-patch-parallel-size", PARALLEL},
    {"size", "is two options here: --width and --height"},
    {"sampler", SCHEDULE},
    {"scheduler", SCHEDULE},
    {"sampling-method", SCHEDULE},
    {"method", "is the word of --quantization METHOD"},
    {"num-images", "is called --batch-count here"},
    {"enable-cpu-offload", OFFLOAD},
    {"enable-layerwise-offload", OFFLOAD},
};

const oq_option_later *oq_option_later_find(const char *name)
{
    for (size_t i = 0; i < OQ_COUNT(later); i++)
        if (oq_name_equal(later[i].name, name)) return &later[i];
    return NULL;
}
