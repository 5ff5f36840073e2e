/// The keys of what is trained, on what, and how.
#include "schema_parts.hpp"

namespace rrfp::job {

namespace {

constexpr std::int64_t samples_max = std::int64_t{1} << 28;

const words activations{"gelu", "gelu_tanh", "silu", "relu"};

void add_model(std::vector<key>& table) {
  section_keys<model_options> keys{table, "model", &job::model};
  using o = model_options;
  keys.choice("family", &o::family, {"gpt2", "llama", "qwen3"},
              "`gpt2`: learned positions, layer norm; `llama`: rotary positions, RMS norm, gated "
              "feed-forward; `qwen3`: like `llama`, with norms of queries and keys.");
  keys.optional_text("pretrained", &o::pretrained, path_rule::files, "a folder, or nothing",
                     "Folder with config.json and model.safetensors in the Hugging Face format "
                     "(gpt2, llama, qwen3, llava); it sets the sizes and the initial weights.");
  keys.integer("layers", &o::layers, {1, 65536}, "",
               "Number of decoder layers; at least one for each chunk of each stage.");
  keys.integer("hidden", &o::hidden, {1, 65536}, "",
               "Width of the hidden state; a multiple of `heads`.");
  keys.integer("heads", &o::heads, {1, 65536}, "", "Number of attention heads.");
  keys.integer("kv_heads", &o::kv_heads, {0, 65536}, "",
               "Number of key and value heads, shared by the attention heads; 0: `heads`.");
  keys.integer("head_width", &o::head_width, {0, 65536}, "",
               "Width of a head; 0: `hidden` / `heads`.");
  keys.integer("feed_forward", &o::feed_forward, {0, 1 << 20}, "",
               "Width of the feed-forward layers; 0: 4 * `hidden`.");
  keys.integer(
      "vocabulary", &o::vocabulary, {1, 1 << 24}, "",
      "Number of token ids. The default is enough for `data.text`; other data of bytes needs "
      "258: the bytes, 256 for an image and 257 for the end of a document.");
  keys.integer("context", &o::context, {1, 1 << 20}, "tokens", "Maximum sequence length.");
  keys.choice("activation", &o::activation, activations,
              "Activation of the feed-forward layers; `auto`: `gelu_tanh` for gpt2, else `silu`.");
  keys.number("norm_epsilon", &o::norm_epsilon, {0, 1, true, false}, "",
              "Term added to the variance in norms.");
  keys.number("rope_theta", &o::rope_theta, {1, 1e12}, "", "Base of the rotary positions.");
  section_keys<rope_scaling_options> rope{
      table, "model", [](job& j) -> rope_scaling_options& { return j.model.rope_scaling; }};
  using r = rope_scaling_options;
  rope.number("rope_factor", &r::factor, {1, 1e6}, "",
              "Factor by which Llama 3 stretches the rotary wavelengths; 1: no stretching.");
  rope.number("rope_low_frequency_factor", &r::low_frequency_factor, {0, 1e6, true, false}, "",
              "Wavelengths above `rope_original_context` / this factor are stretched in full.");
  rope.number("rope_high_frequency_factor", &r::high_frequency_factor, {0, 1e6, true, false}, "",
              "Wavelengths below `rope_original_context` / this factor are not stretched.");
  rope.number("rope_original_context", &r::original_context, {1, 1e9}, "tokens",
              "Context length of the original training.");
  keys.boolean("attention_bias", &o::attention_bias,
               "llama, qwen3: the attention projections have a bias.");
  keys.boolean("mlp_bias", &o::mlp_bias, "llama: the feed-forward projections have a bias.");
  keys.choice("precision", &o::precision, {"fp32", "bf16"},
              "Type of activations and their gradients; weights, weight gradients and the "
              "optimizer are always fp32.");
  keys.number(
      "dropout", &o::dropout, {0, 1, false, true}, "",
      "Probability of dropping an element after the embedding and after each residual branch.");
  keys.boolean("tied_head", &o::tied_head,
               "Whether the head shares the weights of the token embedding.");
}

void add_vision(std::vector<key>& table) {
  section_keys<vision_options> keys{table, "vision",
                                    [](job& j) -> vision_options& { return j.model.vision; }};
  using o = vision_options;
  keys.integer("layers", &o::layers, {0, 65536}, "",
               "Number of encoder layers; 0: no encoder and no images.");
  keys.integer("hidden", &o::hidden, {1, 65536}, "",
               "Width of the hidden state; a multiple of `heads`.");
  keys.integer("heads", &o::heads, {1, 65536}, "", "Number of attention heads.");
  keys.integer("feed_forward", &o::feed_forward, {0, 1 << 20}, "",
               "Width of the feed-forward layers; 0: 4 * `hidden`.");
  keys.integer("patch", &o::patch, {1, 1024}, "pixels", "Side length of a patch.");
  keys.integer(
      "image_size", &o::image_size, {1, 65536}, "pixels",
      "Side length of the images for which positions are learned; other sizes interpolate them.");
  keys.boolean("class_token", &o::class_token, "Whether a class token precedes the patches.");
  keys.choice("activation", &o::activation, activations, "Activation of the feed-forward layers.");
  keys.number("norm_epsilon", &o::norm_epsilon, {0, 1, true, false}, "",
              "Term added to the variance in norms.");
  keys.integer(
      "image_token", &o::image_token, {0, 1 << 24}, "",
      "Token id that marks the place of an image patch in a text; less than `model.vocabulary`.");
}

void add_data(std::vector<key>& table) {
  section_keys<data_options> keys{table, "data", &job::data};
  using o = data_options;
  keys.texts("text", &o::text, path_rule::files, "text or an array of them",
             "Files and folders whose bytes are the tokens, read in windows. Training needs "
             "exactly one of `text`, `jsonl`, `tokens`, `images` and `shapes`.");
  keys.texts("jsonl", &o::jsonl, path_rule::files, "text or an array of them",
             "Files with one JSON object per line, each a document whose bytes are the tokens.");
  keys.texts("tokens", &o::tokens, path_rule::files, "text or an array of them",
             "Files NAME.bin with token ids, each with NAME.json in the same folder, as "
             "scripts/tokenize writes them.");
  keys.texts(
      "images", &o::images, path_rule::files, "text or an array of them",
      "Files with one JSON object per line, each a text with PNG or JPEG images: \"images\" lists "
      "their paths, and <image> marks their places in the text (by default, before the text).");
  keys.integer(
      "shapes", &o::shapes, {0, samples_max}, "samples",
      "Number of synthetic samples with coloured shapes and captions: a small task with images.");
  keys.integer("shapes_seed", &o::shapes_seed, {}, "", "Seed of the synthetic shapes.");
  keys.choice(
      "tokenizer", &o::tokenizer, {"bytes"},
      "How text becomes tokens. `bytes`: each byte is a token, and 257 ends a document. `auto`: "
      "`bytes` for a model that starts from random weights; with `model.pretrained`, whose "
      "tokens are not bytes, only `data.tokens` is accepted.");
  keys.text("text_key", &o::text_key, path_rule::none, "text",
            "Key of the text in the objects of `jsonl` and `images`.");
  keys.integer("microbatch_size", &o::microbatch_size, {1, 65536}, "sequences",
               "Number of sequences in a microbatch; with `pack = \"cost\"` on average.");
  keys.integer("sequence_length", &o::sequence_length, {1, 1 << 20}, "tokens",
               "Length of a window of `text`; maximum length of all other samples. At most "
               "`model.context`.");
  keys.choice("too_long", &o::when_too_long, {"stop", "cut", "skip"},
              "Handling of a sample with more than `sequence_length` tokens: end the run with "
              "an error, cut off its end, or leave it out.");
  keys.choice("order", &o::order, {"shuffled", "file"},
              "Order of the samples; `shuffled`: a new order for each epoch, derived from "
              "`train.seed`. Windows of `text` are always drawn at random.");
  keys.choice("pack", &o::pack, {"order", "cost"},
              "How the samples of a step are divided among its microbatches. `order`: "
              "`microbatch_size` each, in their order. `cost`: so that microbatches and replicas "
              "have about equal FLOPs, at most `microbatch_size` * `sequence_length` tokens each; "
              "not for `text`, whose sequences are equal.");
  keys.integer(
      "max_tokens", &o::max_tokens, {0, std::uint32_t{1} << 31}, "tokens",
      "With `pack = \"cost\"`: maximum number of tokens in a microbatch, at least "
      "`sequence_length`. A step has `pipeline.microbatches` * `microbatch_size` sequences "
      "for each replica, in as few microbatches as this allows, equally many on all "
      "replicas. 0: in `pipeline.microbatches`.");
  keys.integer("pack_delay", &o::pack_delay, {0, 1024}, "steps",
               "With `max_tokens`: maximum number of steps that a sample with more work than a "
               "microbatch has on average waits, so that a step gets several of them. Samples move "
               "within `pack_delay` + 1 steps.");
  keys.choice("bad_samples", &o::when_bad, {"stop", "skip"},
              "Handling of an unusable sample: end the run with an error, or leave it out. To "
              "find all of them, `skip` decodes every image before the run.");
  keys.integer("image_side_max", &o::image_side_max, {1, 16384}, "pixels",
               "Maximum length of an image's longer side; larger images are scaled down to it.");
  keys.numbers("image_mean", &o::image_mean, {0, 1}, "",
               "Value subtracted from the colour values of images, which are in [0, 1]; one value, "
               "or one per colour.");
  keys.numbers("image_std", &o::image_std, {0, 1, true, false}, "",
               "Divisor of the colour values after subtraction; one value, or one per colour.");
  keys.boolean(
      "blind", &o::blind,
      "Leave out the images of `images` or `shapes`, to measure what the text alone predicts.");
}

void add_eval(std::vector<key>& table) {
  section_keys<eval_options> keys{table, "eval", &job::eval};
  using o = eval_options;
  keys.texts("text", &o::text, path_rule::files, "text or an array of them",
             "Held-out data, as `data.text`; at most one of `text`, `jsonl`, `tokens`, "
             "`images` and `shapes`. The other keys of `[data]` apply to it as well.");
  keys.texts("jsonl", &o::jsonl, path_rule::files, "text or an array of them", "As `data.jsonl`.");
  keys.texts("tokens", &o::tokens, path_rule::files, "text or an array of them",
             "As `data.tokens`.");
  keys.texts("images", &o::images, path_rule::files, "text or an array of them",
             "As `data.images`.");
  keys.integer("shapes", &o::shapes, {0, samples_max}, "samples",
               "As `data.shapes`, with the seed `data.shapes_seed` + 1.");
  keys.integer("every", &o::every, {0, count_max}, "steps",
               "Number of steps between two evaluations; 0: only the one after the last step, "
               "which always takes place.");
  keys.integer("batches", &o::batches, {1, 65536}, "batches",
               "Number of batches of an evaluation, each with as many samples as a step. Every "
               "evaluation reads the same ones.");
}

void add_train(std::vector<key>& table) {
  section_keys<train_options> keys{table, "train", &job::train};
  using o = train_options;
  keys.integer("steps", &o::steps, {1, count_max}, "", "Number of optimizer steps.");
  keys.integer("seed", &o::seed, {}, "", "Seed of the weights, the data order and dropout.");
  keys.choice("optimizer", &o::optimizer, {"adamw", "sgd"}, "Optimizer.");
  keys.number("lr", &o::lr, {0, 1e3}, "", "Learning rate after the warm-up.");
  keys.number("lr_min", &o::lr_min, {0, 1e3}, "",
              "Learning rate that a step after the last one would have: after the warm-up the rate "
              "falls from `lr` to this value along half a cosine; at most `lr`.");
  keys.integer("warmup_steps", &o::warmup_steps, {0, count_max}, "",
               "Number of steps of linear warm-up from 0 to `lr`.");
  keys.number("beta1", &o::beta1, {0, 1, false, true}, "", "adamw: decay of the first moment.");
  keys.number("beta2", &o::beta2, {0, 1, false, true}, "", "adamw: decay of the second moment.");
  keys.number("epsilon", &o::epsilon, {0, 1, true, false}, "", "adamw: term added to the divisor.");
  keys.number("weight_decay", &o::weight_decay, {0, 1e3}, "", "Weight decay, multiplied by `lr`.");
  keys.number("momentum", &o::momentum, {0, 1, false, true}, "",
              "sgd: share of the previous update.");
  keys.number("clip_norm", &o::clip_norm, {0, 1e9}, "",
              "Maximum norm of the whole gradient; 0: no clipping.");
  keys.number("loss_scale", &o::loss_scale, {0, 1e30}, "",
              "Initial factor of the loss, for stages of your own that compute in float16 (torch's "
              "GradScaler begins with 65536): a step whose gradient is infinite or NaN is skipped "
              "and halves it; 0: none.");
  keys.integer("loss_scale_interval", &o::loss_scale_interval, {1, 1'000'000'000}, "steps",
               "Number of successive steps with a finite gradient after which `loss_scale` "
               "doubles.");
}

}  // namespace

void add_training_keys(std::vector<key>& table) {
  add_model(table);
  add_vision(table);
  add_data(table);
  add_eval(table);
  add_train(table);
}

}  // namespace rrfp::job
