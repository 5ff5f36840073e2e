#include "schema.hpp"

#include <rrfp/schedule/check.hpp>

#include <rrfp/job/jitter_keys.hpp>
#include <rrfp/job/key_types.hpp>

namespace rrfp::job {

namespace {

/// Upper ends that only keep sums of times and counts far from overflow.
constexpr double ms_max = 1e6;
constexpr std::int64_t count_max = 1'000'000'000;
constexpr std::int64_t bytes_max = std::int64_t{1} << 50;
constexpr std::int64_t samples_max = std::int64_t{1} << 28;

template <class Section>
using section_keys = basic_section_keys<job, Section>;

void add_name(std::vector<key>& table) {
  table.push_back({"name", "text", "", "Names the job in reports. Default: the file's name.", true,
                   path_rule::none,
                   [](job& j, const value& v) -> status {
                     auto text = read_text(v);
                     if (!text) return text.failure();
                     j.name = std::move(text).value();
                     return success();
                   },
                   [](const job& j) { return value{j.name}; }});
}

void add_pipeline(std::vector<key>& table) {
  section_keys<pipeline_options> keys{table, "pipeline", &job::pipeline};
  using o = pipeline_options;
  keys.integer("stages", &o::stages, {1, 1024}, "", "Physical stages, one after another.");
  keys.integer("chunks", &o::chunks, {1, 64}, "", "Parts of the model on each stage.");
  keys.choice("placement", &o::layout,
              {name(placement::linear), name(placement::interleaved), name(placement::v)},
              "Where the chunks lie; `auto`: `linear` with one chunk, else `interleaved`.");
  keys.integer("microbatches", &o::microbatches, {1, 65536}, "", "Microbatches in a step.");
  keys.integer("tp", &o::tp, {1, 64}, "", "Tensor-parallel ranks of a stage.");
  keys.integer("replicas", &o::replicas, {1, 1024}, "",
               "Data-parallel copies of the pipeline, each with its own `microbatches`.");
  keys.boolean("recompute", &o::recompute,
               "Keep no activations between F and B but compute them again: less memory, a forward "
               "more.");
  keys.integers("nodes", &o::nodes, {0, 1023},
                "The node of each stage (replica after replica), or of each rank; empty: evenly.");
}

void add_dispatch(std::vector<key>& table) {
  section_keys<dispatch_options> keys{table, "dispatch", &job::dispatch};
  using o = dispatch_options;
  keys.choice("mode", &o::mode, {name(dispatch_mode::in_order), name(dispatch_mode::ready)},
              "`ready`: the hint ranks what is ready; `in-order`: its sequence is waited for.");
  keys.text("policy", &o::policy, path_rule::policy_table, "a policy or `table:FILE.csv`",
            "The hint: which ready task goes first.");
  keys.integer("lookahead", &o::lookahead, {0, 64}, "launches",
               "Launches that may wait behind the running one.");
  keys.limit("slots", &o::slots, {1, 65536},
             "That may hold memory on a stage; `auto`: min(2 * stages, microbatches) in mode "
             "`ready`, `none` in mode `in-order`.");
  keys.bytes("slot_bytes", &o::slot_bytes, bytes_max,
             "That microbatches may hold on a stage together; 0: no limit.");
  keys.integer("run_ahead", &o::run_ahead, {0, 65536}, "forwards",
               "That a stage may be ahead of its backwards; 0: no limit.");
  keys.choice("admission", &o::admit,
              {name(admission::loaded), name(admission::small_large_small),
               name(admission::large_first), name(admission::small_first)},
              "In which order the first stage admits the microbatches of a step.");
}

const words activations{"gelu", "gelu_tanh", "silu", "relu"};

void add_model(std::vector<key>& table) {
  section_keys<model_options> keys{table, "model", &job::model};
  using o = model_options;
  keys.choice("family", &o::family, {"gpt2", "llama", "qwen3"},
              "`gpt2`: learned positions, layer norm; `llama`: rotary positions, root mean square "
              "norm, gated feed-forward; `qwen3`: the same with norms of queries and keys.");
  keys.optional_text("pretrained", &o::pretrained, path_rule::files, "a folder, or nothing",
                     "With config.json and model.safetensors as Hugging Face has them (gpt2, "
                     "llama, qwen3, llava): sizes and first weights are theirs.");
  keys.integer("layers", &o::layers, {1, 65536}, "", "At least one for each chunk of each stage.");
  keys.integer("hidden", &o::hidden, {1, 65536}, "", "Width; a multiple of `heads`.");
  keys.integer("heads", &o::heads, {1, 65536}, "", "Attention heads.");
  keys.integer("kv_heads", &o::kv_heads, {0, 65536}, "",
               "Heads of keys and values, which several heads share; 0: as many as `heads`.");
  keys.integer("head_width", &o::head_width, {0, 65536}, "", "0: `hidden` / `heads`.");
  keys.integer("feed_forward", &o::feed_forward, {0, 1 << 20}, "",
               "Width of the feed-forward part; 0: 4 * `hidden`.");
  keys.integer("vocabulary", &o::vocabulary, {1, 1 << 24}, "",
               "Token ids; text needs one more than its largest byte.");
  keys.integer("context", &o::context, {1, 1 << 20}, "tokens", "Longest sequence.");
  keys.choice("activation", &o::activation, activations,
              "Of the feed-forward part; `auto`: `gelu_tanh` for gpt2, else `silu`.");
  keys.number("norm_epsilon", &o::norm_epsilon, {0, 1, true, false}, "",
              "Added to the variance in norms.");
  keys.number("rope_theta", &o::rope_theta, {1, 1e12}, "", "Base of rotary positions.");
  section_keys<rope_scaling_options> rope{
      table, "model", [](job& j) -> rope_scaling_options& { return j.model.rope_scaling; }};
  using r = rope_scaling_options;
  rope.number("rope_factor", &r::factor, {1, 1e6}, "",
              "How far LLaMA 3 stretches rotary positions; 1: not at all.");
  rope.number("rope_low_frequency_factor", &r::low_frequency_factor, {0, 1e6, true, false}, "",
              "Waves longer than `rope_original_context` / this are stretched in full.");
  rope.number("rope_high_frequency_factor", &r::high_frequency_factor, {0, 1e6, true, false}, "",
              "Waves shorter than `rope_original_context` / this stay.");
  rope.number("rope_original_context", &r::original_context, {1, 1e9}, "tokens",
              "The context of the first training.");
  keys.boolean("attention_bias", &o::attention_bias,
               "llama, qwen3: the projections of attention have a bias.");
  keys.boolean("mlp_bias", &o::mlp_bias, "llama: those of the feed-forward part have one.");
  keys.choice("precision", &o::precision, {"fp32", "bf16"},
              "Of activations and their gradients; weights, weight gradients and the optimizer are "
              "fp32 with either.");
  keys.number("dropout", &o::dropout, {0, 1, false, true}, "",
              "Probability of dropping an element after the embedding and each residual branch.");
  keys.boolean("tied_head", &o::tied_head, "The head uses the weights of the token embedding.");
}

void add_vision(std::vector<key>& table) {
  section_keys<vision_options> keys{table, "vision",
                                    [](job& j) -> vision_options& { return j.model.vision; }};
  using o = vision_options;
  keys.integer("layers", &o::layers, {0, 65536}, "", "0: no encoder and no images.");
  keys.integer("hidden", &o::hidden, {1, 65536}, "", "Width; a multiple of `heads`.");
  keys.integer("heads", &o::heads, {1, 65536}, "", "Attention heads.");
  keys.integer("feed_forward", &o::feed_forward, {0, 1 << 20}, "",
               "Width of the feed-forward part; 0: 4 * `hidden`.");
  keys.integer("patch", &o::patch, {1, 1024}, "pixels", "Side of a patch.");
  keys.integer("image_size", &o::image_size, {1, 65536}, "pixels",
               "Side of the images whose patches have positions of their own; those of other sizes "
               "get interpolated ones.");
  keys.boolean("class_token", &o::class_token, "A row of its own before the patches.");
  keys.choice("activation", &o::activation, activations, "Of the feed-forward part.");
  keys.number("norm_epsilon", &o::norm_epsilon, {0, 1, true, false}, "",
              "Added to the variance in norms.");
  keys.integer("image_token", &o::image_token, {0, 1 << 24}, "",
               "Stands in a text where a patch of an image goes; less than `model.vocabulary`.");
}

void add_data(std::vector<key>& table) {
  section_keys<data_options> keys{table, "data", &job::data};
  using o = data_options;
  keys.texts("text", &o::text, path_rule::files, "text or an array of them",
             "Files and folders whose bytes are the tokens, in windows. To train takes exactly one "
             "of `text`, `jsonl`, `tokens`, `images` and `shapes`.");
  keys.texts("jsonl", &o::jsonl, path_rule::files, "text or an array of them",
             "Files of one JSON object a line, each a document; its bytes are the tokens.");
  keys.texts("tokens", &o::tokens, path_rule::files, "text or an array of them",
             "Files NAME.bin of token ids with NAME.json beside them, as scripts/tokenize makes.");
  keys.texts("images", &o::images, path_rule::files, "text or an array of them",
             "Files of one JSON object a line, each a text with PNG or JPEG images: \"images\" has "
             "their paths, <image> in the text their places (else they come first).");
  keys.integer("shapes", &o::shapes, {0, samples_max}, "samples",
               "Coloured shapes with captions, made up in memory: a small task with images.");
  keys.integer("shapes_seed", &o::shapes_seed, {}, "", "Other shapes for another number.");
  keys.text("text_key", &o::text_key, path_rule::none, "text",
            "In the objects of `jsonl` and `images`, the key of the text.");
  keys.integer("microbatch_size", &o::microbatch_size, {1, 65536}, "sequences",
               "Sequences in a microbatch.");
  keys.integer("sequence_length", &o::sequence_length, {1, 1 << 20}, "tokens",
               "Of a window; of other samples the most. At most `model.context`.");
  keys.choice("too_long", &o::when_too_long, {"stop", "cut", "skip"},
              "A sample of more tokens is an error, loses its end or is left out.");
  keys.choice("order", &o::order, {"shuffled", "file"},
              "Of samples; `shuffled`: every epoch in another order, which follows from "
              "`train.seed`. Windows of `text` are drawn whatever this is.");
  keys.choice("bad_samples", &o::when_bad, {"stop", "skip"},
              "A sample that cannot be used is an error or is left out; to know all of them, "
              "`skip` decodes every image before the run.");
  keys.integer("image_side_max", &o::image_side_max, {1, 16384}, "pixels",
               "The longer side of a larger image is made this long.");
  keys.numbers("image_mean", &o::image_mean, {0, 1}, "",
               "Taken off the samples of images, which are in [0, 1]; one value or one a colour.");
  keys.numbers("image_std", &o::image_std, {0, 1, true, false}, "",
               "What they are then divided by; one value or one a colour.");
  keys.boolean("blind", &o::blind,
               "The samples of `images` or `shapes` without their images: what the text alone can "
               "tell.");
}

void add_train(std::vector<key>& table) {
  section_keys<train_options> keys{table, "train", &job::train};
  using o = train_options;
  keys.integer("steps", &o::steps, {1, count_max}, "", "Optimizer steps.");
  keys.integer("seed", &o::seed, {}, "", "Weights, data order and dropout follow from it.");
  keys.choice("optimizer", &o::optimizer, {"adamw", "sgd"}, "What turns gradients into weights.");
  keys.number("lr", &o::lr, {0, 1e3}, "", "Learning rate after the warm-up.");
  keys.number("lr_min", &o::lr_min, {0, 1e3}, "", "Where the cosine decay ends; at most `lr`.");
  keys.integer("warmup_steps", &o::warmup_steps, {0, count_max}, "",
               "Steps of linear warm-up from 0 to `lr`.");
  keys.number("beta1", &o::beta1, {0, 1, false, true}, "", "adamw: decay of the first moment.");
  keys.number("beta2", &o::beta2, {0, 1, false, true}, "", "adamw: decay of the second moment.");
  keys.number("epsilon", &o::epsilon, {0, 1, true, false}, "", "adamw: added to the divisor.");
  keys.number("weight_decay", &o::weight_decay, {0, 1e3}, "", "Decay of the weights, times `lr`.");
  keys.number("momentum", &o::momentum, {0, 1, false, true}, "", "sgd: share of the last update.");
  keys.number("clip_norm", &o::clip_norm, {0, 1e9}, "",
              "Largest norm of the whole gradient; 0: no clipping.");
}

void apply_level(weather::jitter_options& jitter, std::string_view name) {
  const auto level = weather::jitter_level(name, jitter.seed);
  RRFP_CHECK(level, "the schema allows the levels that the weather knows");
  jitter.compute = level->compute;
  jitter.probability = level->probability;
  jitter.floor_ms = level->floor_ms;
  jitter.alpha = level->alpha;
}

void add_jitter(std::vector<key>& table) {
  section_keys<weather::jitter_options> keys{table, "jitter", &job::jitter};
  using o = weather::jitter_options;
  keys.integer("seed", &o::seed, {}, "", "Equal seeds meet equal weather, in every mode.");
  keys.preset("level", {"J0", "J1", "J2", "J3"},
              "The paper's levels: sets `compute`, `probability`, `floor_ms` and `alpha`, unless "
              "they stand beside it.",
              apply_level);
  add_jitter_keys(keys);
  section_keys<delay_options> given{table, "jitter", &job::delays};
  given.optional_text(
      "delays", &delay_options::file, path_rule::files, "a file, or nothing",
      "CSV step,stage,chunk,mb,kind,ms: extra time task by task, on top of all else; what is not "
      "listed has none. Steps count from 1 and repeat. Kinds F, B, W, BW (else B + W), and the "
      "messages act and grad, which stage and chunk receive.");
}

void add_cost(std::vector<key>& table) {
  section_keys<cost_options> keys{table, "cost", &job::cost};
  using o = cost_options;
  keys.numbers("forward_ms", &o::forward_ms, {0, ms_max}, "ms",
               "Forward of a microbatch; one value, one a stage or one a virtual stage.");
  keys.numbers("backward_ms", &o::backward_ms, {0, ms_max}, "ms",
               "Input gradient alone; as above.");
  keys.numbers("weight_ms", &o::weight_ms, {0, ms_max}, "ms", "Weight gradient alone; as above.");
  keys.number("link_ms", &o::link_ms, {0, ms_max}, "ms", "From a task's end to its arrival.");
}

void add_device(std::vector<key>& table) {
  section_keys<device_options> keys{table, "device", &job::device};
  using o = device_options;
  keys.choice(
      "kind", &o::kind, {"cpu", "cuda", "emulated"},
      "`cpu`; `cuda`: GPUs of NVIDIA; `emulated`: tasks take the times of [cost] and compute "
      "nothing.");
  keys.number("time_scale", &o::time_scale, {0.001, 1000}, "",
              "Emulated: the times of the run as a multiple of those in [cost] and [jitter].");
  keys.bytes("message_bytes", &o::message_bytes, bytes_max,
             "Emulated: of a message between stages; 0: as many as the model would send.");
  section_keys<cuda_options> cuda{table, "device", &job::cuda};
  using c = cuda_options;
  cuda.integers("gpus", &c::gpus, {0, 255},
                "Cuda: the devices of a machine that its ranks share, by number; empty: all.");
  cuda.boolean("deterministic", &c::deterministic,
               "Cuda: equal runs give equal bits, at the price of slower kernels here and there.");
  cuda.choice(
      "collectives", &c::collectives, {"nccl", "host"},
      "Cuda: how ranks sum; `host`: by way of host memory; `auto`: `nccl`, where every rank "
      "has a device of its own.");
}

void add_transport(std::vector<key>& table) {
  section_keys<transport_options> keys{table, "transport", &job::transport};
  using o = transport_options;
  keys.text("listen", &o::listen, path_rule::none, "an address or host name",
            "Where this node listens; other nodes must reach it. Anything but loopback needs "
            "`key_file`.");
  keys.optional_text("key_file", &o::key_file, path_rule::files, "a file, or nothing",
                     "The key that nodes prove to have, at least 16 bytes, readable by its owner "
                     "alone.");
  keys.text("tls", &o::tls, path_rule::none, "a list as in UCX_TLS",
            "Transports that UCX may use; `auto`: it chooses.");
  keys.bytes("inflight_bytes", &o::inflight_bytes, bytes_max,
             "Of large tensors, that a node fetches at once.");
  keys.integer("heartbeat_ms", &o::heartbeat_ms, {1, 60000}, "ms",
               "Between two signs of life of a node.");
  keys.integer("node_timeout_ms", &o::node_timeout_ms, {3, 600000}, "ms",
               "Without a sign of life for so long, a node is lost.");
  keys.number("join_timeout_s", &o::join_timeout_s, {0.01, 86400}, "s",
              "That nodes wait for each other at the start.");
}

void add_checkpoint(std::vector<key>& table) {
  section_keys<checkpoint_options> keys{table, "checkpoint", &job::checkpoint};
  using o = checkpoint_options;
  keys.optional_text("dir", &o::dir, path_rule::files, "a folder, or nothing",
                     "Where checkpoints go, one folder that all nodes share; none: none are made. "
                     "Each run of a comparison has its own folder in it.");
  keys.integer("every", &o::every, {0, count_max}, "steps",
               "Between two checkpoints; 0: one at the end, or when the run is interrupted.");
  keys.integer("keep", &o::keep, {1, 1000}, "",
               "Checkpoints that stay; older ones go when a new one stands.");
  keys.choice("resume", &o::resume, {"auto", "never", "must"},
              "`auto`: the run goes on from the newest checkpoint in `dir`, if there is one; "
              "`must`: there has to be one; `never`: it starts, and sets earlier ones aside.");
}

void add_run(std::vector<key>& table) {
  section_keys<run_options> keys{table, "run", &job::run};
  using o = run_options;
  keys.number("hang_timeout_s", &o::hang_timeout_s, {0, 86400}, "s",
              "Without progress for so long, a run is given up with a report; 0: never.");
  keys.choice("progress", &o::progress, {"auto", "lines", "none"},
              "`auto`: live on a terminal, plain lines elsewhere.");
  keys.integer(
      "spin_us", &o::spin_us, {0, 1'000'000}, "us",
      "For so long, idle ranks and stages look for work before they sleep: quicker, at the "
      "price of cores. For machines with cores to spare.");
}

std::vector<key> make_keys() {
  std::vector<key> table;
  add_name(table);
  add_pipeline(table);
  add_dispatch(table);
  add_model(table);
  add_vision(table);
  add_data(table);
  add_train(table);
  add_jitter(table);
  add_cost(table);
  add_device(table);
  add_transport(table);
  add_checkpoint(table);
  add_run(table);
  return table;
}

}  // namespace

const key_table<job>& job_keys() {
  static const key_table<job> all{
      "a job",
      {
          {"pipeline", "The shape of the pipeline."},
          {"dispatch", "Which task a stage runs next, and what it may hold."},
          {"model", "A decoder."},
          {"vision", "A vision transformer in front of the decoder."},
          {"data", "Text, tokens or text with images."},
          {"train", "Optimizer and learning rate."},
          {"jitter", "What disturbs the run, the same in every mode."},
          {"cost", "Expected times, for simulation and for the scale of jitter."},
          {"device", "What a rank computes on."},
          {"transport", "Between the nodes of a job."},
          {"checkpoint", "What a run leaves to go on from."},
          {"run", "How the run is watched."},
      },
      make_keys()};
  return all;
}

const std::vector<section_info>& sections() { return job_keys().sections; }
const std::vector<key>& keys() { return job_keys().keys; }
const key* find_key(std::string_view path) { return job_keys().find(path); }

}  // namespace rrfp::job
