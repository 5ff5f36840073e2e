/// What a user asks for, as plain data: the sections of a job file. No behaviour, no third party.
/// load_job() (job.hpp) fills it from TOML and proves that it can run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <rrfp/schedule/admission.hpp>
#include <rrfp/schedule/memory.hpp>
#include <rrfp/schedule/placement.hpp>
#include <rrfp/schedule/stage_core.hpp>

namespace rrfp::job {

/// [pipeline] the shape of the pipeline.
struct pipeline_options {
  std::uint32_t stages = 1;
  /// Chunks of the model on each stage.
  std::uint32_t chunks = 1;
  /// Nothing: linear with one chunk, else interleaved.
  std::optional<placement> layout;
  /// Microbatches in a step.
  std::uint32_t microbatches = 8;
  /// Tensor-parallel ranks of a stage.
  std::uint32_t tp = 1;
  /// Data-parallel copies of the pipeline, each with `microbatches` of its own.
  std::uint32_t replicas = 1;
  /// Activations are not kept between F and B but computed again.
  bool recompute = false;
  /// The node of each stage, replica after replica, or of each rank of each of them; empty: evenly.
  std::vector<std::uint32_t> nodes;
};

/// [dispatch] which ready task runs next.
struct dispatch_options {
  dispatch_mode mode = dispatch_mode::ready;
  /// A known policy or "table:FILE.csv".
  std::string policy = "bfw";
  /// Launches that may wait behind the running one.
  std::uint32_t lookahead = 0;
  /// Microbatches that may hold memory on a stage; 0: no limit; nothing: effective_limit() chooses.
  std::optional<std::uint32_t> slots;
  /// Bytes that they may hold on a stage together; 0: no limit.
  std::uint64_t slot_bytes = 0;
  /// Forwards that a stage may be ahead of its backwards; 0: no limit.
  std::uint32_t run_ahead = 0;
  admission admit = admission::loaded;
};

/// Families of decoders, by the names that Hugging Face gives them.
enum class architecture : std::uint8_t { gpt2, llama, qwen3 };

enum class activation_kind : std::uint8_t { gelu, gelu_tanh, silu, relu };

/// What activations and their gradients are. Weights, their gradients, the optimizer and the loss
/// are float32 with either.
enum class precision_kind : std::uint8_t { fp32, bf16 };

/// How LLaMA 3 stretches rotary positions beyond the context of its first training.
struct rope_scaling_options {
  /// 1: not at all.
  double factor = 1.0;
  double low_frequency_factor = 1.0;
  double high_frequency_factor = 4.0;
  double original_context = 8192;

  bool operator==(const rope_scaling_options&) const = default;
};

/// [vision] a vision transformer in front of the decoder.
struct vision_options {
  /// 0: there is none, and no images.
  std::uint32_t layers = 0;
  std::uint32_t hidden = 128;
  std::uint32_t heads = 4;
  /// 0: 4 * hidden.
  std::uint32_t feed_forward = 0;
  /// Pixels, of a side.
  std::uint32_t patch = 16;
  /// Pixels of a side of the images whose patches have positions of their own; those of other sizes
  /// get them by interpolation.
  std::uint32_t image_size = 224;
  bool class_token = true;
  activation_kind activation = activation_kind::gelu;
  double norm_epsilon = 1e-12;
  /// Stands in a text where a patch of an image goes.
  std::uint32_t image_token = 256;

  bool operator==(const vision_options&) const = default;
};

/// [model]
struct model_options {
  architecture family = architecture::gpt2;
  /// A folder with a config.json as Hugging Face writes it, and model.safetensors: sizes and first
  /// weights are theirs. Empty: none.
  std::string pretrained;
  std::uint32_t layers = 4;
  std::uint32_t hidden = 128;
  std::uint32_t heads = 4;
  /// Heads of keys and values, each for several of queries; 0: as many as heads.
  std::uint32_t kv_heads = 0;
  /// Elements of a head; 0: hidden / heads.
  std::uint32_t head_width = 0;
  /// Width of the feed-forward part; 0: 4 * hidden.
  std::uint32_t feed_forward = 0;
  std::uint32_t vocabulary = 256;
  /// Longest sequence, in tokens.
  std::uint32_t context = 128;
  /// Nothing: as the family has it.
  std::optional<activation_kind> activation;
  double norm_epsilon = 1e-5;
  double rope_theta = 10000.0;
  rope_scaling_options rope_scaling;
  /// llama, qwen3: whether the projections of attention have a bias.
  bool attention_bias = false;
  /// llama: whether those of the feed-forward part have one.
  bool mlp_bias = false;
  precision_kind precision = precision_kind::fp32;
  /// Probability of dropping an element after the embedding and after each residual branch.
  double dropout = 0.0;
  /// The head uses the token embedding's weights.
  bool tied_head = false;
  vision_options vision;

  bool operator==(const model_options&) const = default;
};

/// What becomes of a sample with more tokens than data.sequence_length: an error, its end is cut
/// off, or it is left out.
enum class too_long : std::uint8_t { stop, cut, skip };

/// `shuffled`: every epoch in an order of its own.
enum class sample_order : std::uint8_t { shuffled, file };

/// What makes tokens of a text.
enum class tokenizer_kind : std::uint8_t { bytes };

/// What becomes of a sample that cannot be used.
enum class bad_samples : std::uint8_t { stop, skip };

/// [data] exactly one of `text`, `jsonl`, `tokens`, `images` and `shapes` is given.
struct data_options {
  /// Bytes as tokens: every regular file (folders are walked), in order of path.
  std::vector<std::string> text;
  /// Files of one JSON object a line, each a document.
  std::vector<std::string> jsonl;
  /// NAME.bin with token ids, beside it NAME.json that tells what they are.
  std::vector<std::string> tokens;
  /// Files of one JSON object a line, each a text with images.
  std::vector<std::string> images;
  /// Made up samples of coloured shapes with captions: how many.
  std::uint32_t shapes = 0;
  std::uint64_t shapes_seed = 1;
  /// Of `jsonl` and `images`: the key of the text in each object.
  std::string text_key = "text";
  /// Sequences in a microbatch.
  std::uint32_t microbatch_size = 4;
  /// Tokens in a sequence, at most model.context. Where samples have lengths of their own: the most
  /// that one may have.
  std::uint32_t sequence_length = 128;
  too_long when_too_long = too_long::stop;
  sample_order order = sample_order::shuffled;
  bad_samples when_bad = bad_samples::stop;
  /// The longer side of a larger image is made this long, in pixels.
  std::uint32_t image_side_max = 256;
  /// Of samples in [0, 1]; one value, or one for red, green and blue each.
  std::vector<double> image_mean{0.5};
  std::vector<double> image_std{0.5};
  /// The same samples without their images.
  bool blind = false;
  /// Nothing: bytes, which a pretrained model is not trained on unless that is asked for.
  std::optional<tokenizer_kind> tokenizer;
};

enum class optimizer_kind : std::uint8_t { adamw, sgd };

/// [train]
struct train_options {
  std::uint64_t steps = 100;
  std::uint64_t seed = 1;
  optimizer_kind optimizer = optimizer_kind::adamw;
  double lr = 3e-4;
  /// Where the cosine decay ends.
  double lr_min = 0.0;
  /// Steps of linear warm-up from 0 to lr.
  std::uint64_t warmup_steps = 0;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;
  double momentum = 0.0;
  /// Largest global gradient norm; 0: no clipping.
  double clip_norm = 1.0;
};

/// [jitter] what is given, not drawn; the rest of the section is weather::jitter_options.
struct delay_options {
  /// Extra time task by task and message by message, as simulate/given_delays.hpp has it; empty:
  /// none.
  std::string file;
};

/// [cost] expected times, for simulation and for the scale of jitter. A list holds one value for
/// all, one a stage or one a virtual stage (see cost_at() in job.hpp).
struct cost_options {
  std::vector<double> forward_ms{1.0};
  /// The input gradient alone; a fused backward takes backward_ms + weight_ms.
  std::vector<double> backward_ms{1.0};
  std::vector<double> weight_ms{1.0};
  /// From the end of a task to the arrival of its output at the neighbour.
  double link_ms = 0.0;
};

enum class device_kind : std::uint8_t { cpu, cuda, emulated };

/// [device] what a rank computes on.
struct device_options {
  device_kind kind = device_kind::cpu;
  /// Emulated only: all times of the run, as a multiple of those in [cost] and [jitter].
  double time_scale = 1.0;
  /// Emulated only: bytes of a message between stages; 0: as the model would send.
  std::uint64_t message_bytes = 0;
};

/// [transport] between the nodes of a job.
struct transport_options {
  /// Address or name under which other nodes reach this one.
  std::string listen = "127.0.0.1";
  /// Empty: none, which only loopback allows.
  std::string key_file;
  /// As UCX_TLS has it; "auto": UCX chooses.
  std::string tls = "auto";
  /// Of large tensors, that a node fetches at once.
  std::uint64_t inflight_bytes = std::uint64_t{256} << 20;
  std::uint32_t heartbeat_ms = 200;
  std::uint32_t node_timeout_ms = 10'000;
  double join_timeout_s = 60;
};

enum class resume_kind : std::uint8_t { automatic, never, must };

/// [checkpoint] what a run leaves to go on from.
struct checkpoint_options {
  /// Empty: none. Shared among the nodes of the job. Runs of a comparison have a folder each in it.
  std::string dir;
  /// Steps between two checkpoints; 0: only at the end.
  std::uint64_t every = 0;
  /// Of the newest, that stay.
  std::uint32_t keep = 3;
  resume_kind resume = resume_kind::automatic;
};

/// Whether an address or host name means this machine alone: "localhost", "127.0.0.1", "::1".
bool is_loopback(std::string_view host);

/// automatic: live on a terminal, plain lines elsewhere.
enum class progress_kind : std::uint8_t { automatic, lines, none };

/// [run] how a run is watched.
struct run_options {
  /// Time without progress after which a run is given up, with a hang report; 0: never.
  double hang_timeout_s = 60.0;
  progress_kind progress = progress_kind::automatic;
  /// How long the threads of stages and ranks look for work before they sleep.
  std::uint32_t spin_us = 0;
};

}  // namespace rrfp::job
