#include "schema.hpp"

#include <rrfp/base/check.hpp>

#include <rrfp/job/key_types.hpp>

namespace rrfp::job {

namespace {

/// Upper bounds that only protect sums of counts from overflow.
constexpr std::int64_t count_max = 1'000'000'000;
constexpr std::int64_t bytes_max = std::int64_t{1} << 50;
constexpr std::int64_t samples_max = std::int64_t{1} << 28;

template <class Section>
using section_keys = basic_section_keys<job, Section>;

void add_name(std::vector<key>& table) {
  table.push_back({"name", "text", "", "Name of the job in reports; default: the name of the file.",
                   true, path_rule::none,
                   [](job& j, const value& v) -> status {
                     auto text = read_text(v);
                     if (!text) return text.failure();
                     j.name = std::move(text).value();
                     return success();
                   },
                   [](const job& j) { return value{j.name}; }});
}

const words cut_kinds{"auto", "layers", "cost"};

status set_cuts(job& j, const value& v) {
  auto& cuts = j.pipeline.cuts;
  if (std::holds_alternative<value_list>(v.data)) {
    auto counts = read_integers(v, {1, 65536});
    if (!counts) return counts.failure();
    if (!counts->empty()) {
      cuts = {cut_kind::given, std::move(*counts)};
      return success();
    }
  }
  const auto word = read_word(v, cut_kinds);
  if (!word)
    return error{"expected \"auto\", \"layers\", \"cost\" or an array of integers >= 1, got " +
                 describe(v)};
  cuts = {static_cast<cut_kind>(*word), {}};
  return success();
}

value cuts_of(const job& j) {
  const auto& cuts = j.pipeline.cuts;
  if (cuts.kind != cut_kind::given)
    return {std::string{cut_kinds[static_cast<std::size_t>(cuts.kind)]}};
  return to_list(std::vector<std::int64_t>(cuts.layers.begin(), cuts.layers.end()));
}

void add_cuts(std::vector<key>& table) {
  table.push_back(
      {"pipeline.cuts", type_name(cut_kinds) + ", or an array of integer, 1 to 65536", "layers",
       "Division of the layers, the encoder's first, into the parts of the pipeline. `layers`: "
       "evenly. `cost`: such that the slowest part takes the least time, with the times of [cost] "
       "by layer, or of `cost.preset`, and `cost.speed`. An array: the number of layers of each "
       "part. `auto`: `cost` with `cost.preset`, else `layers`. The projector, the embedding and "
       "the head come on top of the layers beside them; only `cost` with `cost.preset` moves them "
       "as well.",
       true, path_rule::none, set_cuts, cuts_of});
}

void add_pipeline(std::vector<key>& table) {
  section_keys<pipeline_options> keys{table, "pipeline", &job::pipeline};
  using o = pipeline_options;
  keys.integer("stages", &o::stages, {1, 1024}, "", "Number of physical stages.");
  keys.integer("chunks", &o::chunks, {1, 64}, "", "Number of model parts on each stage.");
  keys.choice(
      "placement", &o::layout,
      {name(placement::linear), name(placement::interleaved), name(placement::v)},
      "Placement of the parts of the model on p stages. `linear`: one chunk per stage, in the "
      "order of the stages; `interleaved`: chunk c of stage s is part c * p + s; `v`: two "
      "chunks, the second in reverse order; `auto`: `linear` with one chunk, else "
      "`interleaved`.");
  add_cuts(table);
  keys.integer("microbatches", &o::microbatches, {1, 65536}, "",
               "Number of microbatches in a step.");
  keys.integer("tp", &o::tp, {1, 64}, "", "Number of tensor-parallel ranks per stage.");
  keys.integer("replicas", &o::replicas, {1, 1024}, "",
               "Number of data-parallel copies of the pipeline, each with its own `microbatches`.");
  keys.boolean(
      "recompute", &o::recompute,
      "Discard activations after F and recompute them for B: less memory, one more forward.");
  keys.integers(
      "nodes", &o::nodes, {0, 1023},
      "Node that hosts each stage (replica by replica) or each rank; empty: an even split.");
}

void add_dispatch(std::vector<key>& table) {
  section_keys<dispatch_options> keys{table, "dispatch", &job::dispatch};
  using o = dispatch_options;
  keys.choice("mode", &o::mode, {name(dispatch_mode::in_order), name(dispatch_mode::ready)},
              "`ready`: run the best-ranked ready task; `in-order`: follow the policy's sequence "
              "and wait for each task.");
  keys.text("policy", &o::policy, path_rule::policy_table, "a policy or `table:FILE.csv`",
            "Policy that ranks the ready tasks (the hint) or, in mode `in-order`, gives "
            "their sequence; `rrfp-node policies` lists all.");
  keys.choice(
      "messages", &o::messages, {"asynchronous", "blocking"},
      "`blocking`: a stage posts its send together with its next receive and waits until its "
      "result was received, as frameworks with fixed schedules do. Requires mode `in-order` "
      "without `lookahead`.");
  keys.integer("lookahead", &o::lookahead, {0, 64}, "launches",
               "Maximum number of launches queued behind the running one.");
  keys.limit(
      "slots", &o::slots, {1, 65536}, {"auto", "none", "1f1b", "p"},
      {std::nullopt, 0U, slots_of_1f1b, slots_of_stages}, "microbatches",
      "Maximum number of microbatches that may hold activations on a stage; `auto`: min(2 * "
      "stages, microbatches) in mode `ready`, `none` in mode `in-order` or with `run_ahead`; "
      "`1f1b`: p - s on stage s of p, as 1F1B holds; `p`: p on every stage.");
  keys.choice(
      "slot_unit", &o::slot_unit, {"microbatch", "chunk"},
      "What a slot holds. `microbatch`: a microbatch on all chunks of the stage; `chunk`: a "
      "microbatch on one chunk, with `slots` times the chunks of the stage as the limit.");
  keys.bytes("slot_bytes", &o::slot_bytes, bytes_max,
             "Maximum bytes that all microbatches together may hold on a stage; 0: no limit.");
  keys.integer("run_ahead", &o::run_ahead, {0, 65536}, "forwards",
               "The paper's back-pressure, in place of `slots` and `slot_bytes`: a stage that "
               "has run this many F more than B runs no further F; with several chunks, there "
               "only the oldest unfinished microbatch continues. Postponed W do not count. 0: "
               "no limit.");
  keys.integer("window", &o::window, {0, 65536}, "tasks",
               "Mode `ready` with a fixed schedule: of the tasks that are not launched yet, "
               "only the first `window` of the sequence may run, and those of the oldest "
               "microbatch; W fills the time. 0: no window.");
  keys.integer("early_forwards", &o::early_forwards, {0, 65536}, "forwards",
               "Mode `ready`: maximum number of microbatches whose F a stage may run before "
               "they have a slot, while it has no other task. The next stage gets the output; F "
               "runs again when a slot is free. With policy `auto`: only if simulation finds it "
               "quicker.");
  keys.limit("weight_pieces", &o::weight_pieces, {1, 64}, {"auto"}, {std::nullopt}, "launches",
             "Number of launches into which each W is divided in mode `ready`, so that a B "
             "that becomes ready waits only for a part of W. `auto`: 4 with policy "
             "`bfw_plus`, 1 with the others; fewer if the launches would take more than 4 % "
             "of W.");
  keys.choice("admission", &o::admit,
              {name(admission::loaded), name(admission::small_large_small),
               name(admission::large_first), name(admission::small_first)},
              "Order in which the first stage admits the microbatches of a step. `loaded`: the "
              "order of the "
              "data; `small_large_small`: the cheapest first and last, the most expensive in the "
              "middle; `large_first`, `small_first`: sorted by cost.");
  keys.choice("agreement", &o::agreement,
              {name(rank_agreement::arrivals), name(rank_agreement::candidates)},
              "How the tensor-parallel ranks of a stage agree on the next task. `arrivals`: "
              "the stage decides for them, among the tasks whose inputs are on every rank. "
              "`candidates`: the paper's rule, for comparison: each rank picks one of its "
              "ready tasks and an all-gather compares the picks; if they differ, nothing runs "
              "until another task becomes ready on a rank. `candidates` requires mode `ready` "
              "without `lookahead`.");
  keys.number("agreement_ms", &o::agreement_ms, {0, ms_max}, "ms",
              "With `agreement` = `candidates`: time of one all-gather, in simulations and on "
              "emulated devices. The paper's Table 3 has 0.16 ms with 2 ranks and 0.23 ms with "
              "4.");
}

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
               "Number of sequences in a microbatch.");
  keys.integer("sequence_length", &o::sequence_length, {1, 1 << 20}, "tokens",
               "Length of a window of `text`; maximum length of all other samples. At most "
               "`model.context`.");
  keys.choice("too_long", &o::when_too_long, {"stop", "cut", "skip"},
              "Handling of a sample with more than `sequence_length` tokens: end the run with "
              "an error, cut off its end, or leave it out.");
  keys.choice("order", &o::order, {"shuffled", "file"},
              "Order of the samples; `shuffled`: a new order for each epoch, derived from "
              "`train.seed`. Windows of `text` are always drawn at random.");
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
  keys.integer("shapes", &o::shapes, {0, samples_max}, "samples", "As `data.shapes`.");
  keys.integer("shapes_seed", &o::shapes_seed, {}, "", "As `data.shapes_seed`.");
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
  keys.number(
      "lr_min", &o::lr_min, {0, 1e3}, "",
      "Learning rate of the last step: after the warm-up the rate falls from `lr` to this value "
      "along half a cosine; at most `lr`.");
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

void add_conditions(std::vector<key>& table) {
  using weather::link_spread;
  section_keys<weather::conditions> keys{table, "jitter", &job::jitter};
  using o = weather::conditions;
  keys.choice("spread", &o::spread,
              {name(link_spread::none), name(link_spread::lognormal), name(link_spread::stalls)},
              "Distribution of the factor on a message's own time.");
  keys.number("spread_sigma", &o::spread_sigma, {0, 10}, "",
              "lognormal: standard deviation of the logarithm; the median is 1.");
  keys.number("stall_probability", &o::stall_probability, {0, 1}, "",
              "stalls: share of messages that stall.");
  keys.number("stall_factor", &o::stall_factor, {0, 1e6}, "",
              "stalls: minimum extra time, in multiples of the message's own time.");
  keys.number("stall_alpha", &o::stall_alpha, {1, 1e6}, "",
              "stalls: tail index of the extra time.");
  keys.number("stall_unit_ms", &o::stall_unit_ms, {0, ms_max}, "ms",
              "stalls: unit of the extra time, in place of the message's own time; 0: the "
              "message's own time.");
  keys.integer("straggler_stage", &o::straggler_stage, {0, 1023}, "",
               "Stage whose tasks are slow.");
  keys.number("straggler_factor", &o::straggler_factor, {0, 1e6, true, false}, "",
              "Factor on the durations of that stage's tasks; 1: no straggler.");
  keys.integer("pause_stage", &o::pause_stage, {0, 1023}, "",
               "Stage of which one rank pauses once per step.");
  keys.number("pause_ms", &o::pause_ms, {0, ms_max}, "ms", "Length of the pause; 0: no pause.");
  keys.integer("slow_link_stage", &o::slow_link_stage, {0, 1023}, "",
               "Stage whose messages to and from the next stage are slow.");
  keys.number("slow_link_factor", &o::slow_link_factor, {0, 1e6}, "",
              "Factor on the time of those messages; 1: no slow link.");
  keys.number("loss_probability", &o::loss_probability, {0, weather::loss_probability_max}, "",
              "Probability that an attempt to send a message is lost; only if the job runs in "
              "one process.");
  keys.number("resend_ms", &o::resend_ms, {1e-3, ms_max}, "ms",
              "Time after which a lost message is sent again.");
  keys.number("double_probability", &o::double_probability, {0, 1}, "",
              "Probability that a message arrives twice; only if the job runs in one process.");
  keys.choice("ranks", &o::ranks,
              {name(weather::rank_delays::together), name(weather::rank_delays::apart)},
              "Delays of the tensor-parallel ranks of a stage. `together`: all ranks end a "
              "task when the slowest one does, and their messages share one delay. `apart`: "
              "each rank and each message has its own delay.");
}

void apply_level(weather::conditions& jitter, std::string_view name) {
  const auto level = weather::conditions_of(name);
  RRFP_CHECK(level, "the schema must allow only known jitter levels");
  jitter.compute = level->compute;
  if (name.starts_with("measured")) {
    jitter.compute_sigma = level->compute_sigma;
    jitter.spread = level->spread;
    return;
  }
  jitter.probability = level->probability;
  jitter.floor_ms = level->floor_ms;
  jitter.alpha = level->alpha;
}

void add_jitter(std::vector<key>& table) {
  section_keys<weather::jitter_options> keys{
      table, "jitter", [](job& j) -> weather::jitter_options& { return j.jitter; }};
  section_keys<weather::conditions> levels{table, "jitter", &job::jitter};
  using o = weather::jitter_options;
  using weather::compute_jitter;
  using weather::link_jitter;
  keys.integer("seed", &o::seed, {}, "",
               "Seed of all delays, and of the images, texts and loads of experts of "
               "`cost.preset`. Equal seeds give equal delays in every mode.");
  levels.preset("level", {"J0", "J1", "J2", "J3", "measured", "measured-lognormal"},
                "The paper's conditions, as values of other keys, which the job may override. "
                "`J0`: no delays. `J1`, `J2`, `J3`: `compute` = `paper` with `probability` 0.1, "
                "0.2, 0.3, `floor_ms` 5, 10, 15 and `alpha` 0.5, 1.0, 1.5. `measured`, "
                "`measured-lognormal`: `compute` = `lognormal` with `compute_sigma` 0.237, and "
                "`spread` = `stalls` or `lognormal`.",
                apply_level);
  keys.choice(
      "compute", &o::compute,
      {name(compute_jitter::none), name(compute_jitter::lognormal), name(compute_jitter::paper),
       name(compute_jitter::lognormal_and_paper)},
      "Distribution of the delay of a task. `lognormal`: the task takes its expected time "
      "multiplied by a log-normal factor of mean 1. `paper`: with `probability`, a task F, B or BW "
      "takes `alpha` * max(`floor_ms`, average time of F and BW on the stage) * U longer, with U "
      "uniform in [0.5, 1.5). `lognormal+paper`: both.");
  keys.number("compute_sigma", &o::compute_sigma, {0, 10}, "",
              "lognormal: standard deviation of the logarithm.");
  keys.number("probability", &o::probability, {0, 1}, "",
              "paper: share of tasks that are delayed.");
  keys.number("floor_ms", &o::floor_ms, {0, ms_max}, "ms",
              "paper: minimum of the task time that scales the delay.");
  keys.number("alpha", &o::alpha, {0, 1e3}, "", "paper: factor on the delay.");
  keys.choice("link", &o::link,
              {name(link_jitter::none), name(link_jitter::constant), name(link_jitter::exponential),
               name(link_jitter::lognormal), name(link_jitter::pareto)},
              "Distribution of the extra time of a message.");
  keys.number("link_mean_ms", &o::link_mean_ms, {0, ms_max}, "ms", "Mean extra time of a message.");
  keys.number("link_sigma", &o::link_sigma, {0, 10}, "",
              "lognormal: standard deviation of the logarithm.");
  keys.number("link_alpha", &o::link_alpha, {1, 1e3, true, false}, "",
              "pareto: tail index; smaller values have heavier tails.");
  add_conditions(table);
  section_keys<delay_options> given{table, "jitter", &job::delays};
  given.optional_text(
      "delays", &delay_options::file, path_rule::files, "a file, or nothing",
      "CSV file with columns step,stage,chunk,mb,kind,ms: extra time per task and "
      "message, added to all other times; a task or message that is not listed gets "
      "none. Kinds: tasks F, B, W and BW (default: B + W), and messages act and "
      "grad to the given stage and chunk. Steps count from 1; after the last one "
      "the file repeats.");
}

void add_device(std::vector<key>& table) {
  section_keys<device_options> keys{table, "device", &job::device};
  using o = device_options;
  keys.choice("kind", &o::kind, {"cpu", "cuda", "emulated"},
              "`cpu`; `cuda`: NVIDIA GPUs; `emulated`: tasks take the times of [cost] and compute "
              "nothing.");
  keys.number("time_scale", &o::time_scale, {0.001, 1000}, "",
              "Emulated: factor on the times of [cost] and [jitter]; 2 takes twice as long.");
  keys.bytes("message_bytes", &o::message_bytes, bytes_max,
             "Emulated: size of a message between stages; 0: the size that the model would send.");
  section_keys<cuda_options> cuda{table, "device", &job::cuda};
  using c = cuda_options;
  cuda.integers("gpus", &c::gpus, {0, 255},
                "CUDA: numbers of the devices that the ranks of a machine share; empty: all.");
  cuda.boolean("deterministic", &c::deterministic,
               "CUDA: equal runs give equal bits; some kernels are slower.");
  cuda.choice("collectives", &c::collectives, {"nccl", "host"},
              "CUDA: how ranks sum; `host`: through host memory; `auto`: `nccl` if every rank has "
              "its own device.");
}

void add_transport(std::vector<key>& table) {
  section_keys<transport_options> keys{table, "transport", &job::transport};
  using o = transport_options;
  keys.text("listen", &o::listen, path_rule::none, "an address or host name",
            "Address on which this node listens; other nodes must be able to reach it. Any address "
            "except loopback requires `key_file`.");
  keys.optional_text(
      "key_file", &o::key_file, path_rule::files, "a file, or nothing",
      "File with the shared key of the job, at least 16 bytes, readable only by its "
      "owner. The key itself is never sent. Without a file, on loopback, each run has a "
      "key of its own.");
  keys.text("tls", &o::tls, path_rule::none, "a list as in UCX_TLS",
            "Transports that UCX may use (UCX's abbreviation tls has nothing to do with "
            "encryption); `auto`: all but `tcp` if every node is on loopback, else all.");
  keys.bytes("inflight_bytes", &o::inflight_bytes, bytes_max,
             "Maximum bytes of large tensors that a node fetches at the same time.");
  keys.integer("heartbeat_ms", &o::heartbeat_ms, {1, 60000}, "ms",
               "Interval between heartbeats of a node.");
  keys.integer(
      "node_timeout_ms", &o::node_timeout_ms, {3, 600000}, "ms",
      "Time without a heartbeat after which a node counts as lost. A node whose connection "
      "closes counts as lost at once.");
  keys.number("join_timeout_s", &o::join_timeout_s, {0.01, 86400}, "s",
              "Maximum time that nodes wait for each other at the start.");
}

void add_checkpoint(std::vector<key>& table) {
  section_keys<checkpoint_options> keys{table, "checkpoint", &job::checkpoint};
  using o = checkpoint_options;
  keys.optional_text("dir", &o::dir, path_rule::files, "a folder, or nothing",
                     "Folder for checkpoints, shared by all nodes; none: no checkpoints. Each run "
                     "of a comparison gets its own subfolder.");
  keys.integer(
      "every", &o::every, {0, count_max}, "steps",
      "Number of steps between checkpoints; 0: only at the end or when the run is interrupted.");
  keys.integer("keep", &o::keep, {1, 1000}, "",
               "Number of checkpoints to keep; older ones are deleted after each save.");
  keys.choice("resume", &o::resume, {"auto", "never", "must"},
              "`auto`: resume from the newest checkpoint in `dir`, if there is one; `must`: "
              "require one; `never`: start from scratch and set older checkpoints aside.");
}

void add_recovery(std::vector<key>& table) {
  section_keys<recovery_options> keys{table, "recovery", &job::recovery};
  using o = recovery_options;
  keys.integer("max_restarts", &o::max_restarts, {0, 1'000'000}, "",
               "Number of node losses that the job survives: it waits until the lost node has "
               "been started again, and resumes. 0: the first loss ends the job.");
  keys.integer(
      "every", &o::every, {1, count_max}, "steps",
      "Number of steps between two copies of the state in the memory of the nodes. After a "
      "loss the job resumes from the newest one.");
  keys.number("hold_s", &o::hold_s, {0.1, 86400}, "s",
              "Maximum time that the other nodes wait for the replacement of a lost one.");
}

void add_run(std::vector<key>& table) {
  section_keys<run_options> keys{table, "run", &job::run};
  using o = run_options;
  keys.number("hang_timeout_s", &o::hang_timeout_s, {0, 86400}, "s",
              "Time without progress after which the run ends with a hang report; 0: never.");
  keys.choice("progress", &o::progress, {"auto", "lines", "none"},
              "`auto`: live progress on a terminal, plain lines elsewhere; `lines`: plain "
              "lines; `none`: no progress.");
  keys.integer("spin_us", &o::spin_us, {0, 1'000'000}, "us",
               "Time for which idle ranks and stages poll for work before they sleep: faster, but "
               "it occupies cores. For machines with spare cores.");
}

std::vector<key> make_keys() {
  std::vector<key> table;
  add_name(table);
  add_pipeline(table);
  add_dispatch(table);
  add_model(table);
  add_vision(table);
  add_data(table);
  add_eval(table);
  add_train(table);
  add_jitter(table);
  add_cost_keys(table);
  add_device(table);
  add_transport(table);
  add_checkpoint(table);
  add_recovery(table);
  add_run(table);
  return table;
}

}  // namespace

const key_table<job>& job_keys() {
  static const key_table<job> all{
      "a job",
      {
          {"pipeline", "The shape of the pipeline."},
          {"dispatch", "The choice of the next task on a stage, and its memory limits."},
          {"model", "The decoder."},
          {"vision", "The vision transformer in front of the decoder."},
          {"data", "The training data: text, tokens, or text with images."},
          {"eval", "Held-out data, and when to evaluate on it."},
          {"train", "The optimizer and the learning rate."},
          {"jitter", "Artificial delays, the same in every mode."},
          {"cost", "Expected task durations, used by simulations and as the scale of jitter."},
          {"machine", "The machine of `cost.preset`, by default a cluster of RTX 4090."},
          {"images", "The images in a sample of a multimodal `cost.preset`."},
          {"texts", "The text in a sample of `cost.preset`."},
          {"experts", "The load of the experts of a `cost.preset` that is a mixture of experts."},
          {"device", "The device of a rank."},
          {"transport", "Communication between the nodes of a job."},
          {"checkpoint", "Saving the state on disk, and resuming from there."},
          {"recovery", "Resuming in place after the loss of a node."},
          {"run", "Progress output and hang detection."},
      },
      make_keys()};
  return all;
}

const std::vector<section_info>& sections() { return job_keys().sections; }
const std::vector<key>& keys() { return job_keys().keys; }
const key* find_key(std::string_view path) { return job_keys().find(path); }

}  // namespace rrfp::job
