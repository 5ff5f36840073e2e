/// The sections of a job file as plain data, without behaviour or third-party types. load_job()
/// (job.hpp) fills them from TOML and validates them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <rrfp/core/memory.hpp>
#include <rrfp/core/placement.hpp>
#include <rrfp/core/stage_core.hpp>

namespace rrfp::job {

/// What divides the layers of the model into parts, one for each virtual stage. automatic: as
/// `layers`, unless an extension of the schema has other parts.
enum class cut_kind : std::uint8_t { automatic, layers, cost, given };

struct cut_options {
  cut_kind kind = cut_kind::automatic;
  /// Given: the number of layers of each part.
  std::vector<std::uint32_t> layers;

  bool operator==(const cut_options&) const = default;
};

/// How many microbatches each replica runs. equal: its own. measured: a slow one leaves some to the
/// others.
enum class share_kind : std::uint8_t { equal, measured };

/// [pipeline]: the shape of the pipeline.
struct pipeline_options {
  std::uint32_t stages = 1;
  /// Number of model chunks on each stage.
  std::uint32_t chunks = 1;
  /// Empty: linear with one chunk, else interleaved.
  std::optional<placement> layout;
  /// layers_of_parts() evaluates it.
  cut_options cuts;
  /// Number of microbatches in a step.
  std::uint32_t microbatches = 8;
  /// Number of tensor-parallel ranks per stage.
  std::uint32_t tp = 1;
  /// Number of data-parallel copies of the pipeline, each with its own `microbatches`.
  std::uint32_t replicas = 1;
  share_kind shares = share_kind::equal;
  /// Whether activations are discarded after F and recomputed for B.
  bool recompute = false;
  /// The node of each stage, replica by replica, or the node of each rank; empty: an even split.
  std::vector<std::uint32_t> nodes;
};

/// Special values of dispatch_options::slots on stage s of p with m microbatches. slots_of_1f1b:
/// what 1F1B holds, min(p - s, m). slots_of_stages: what 1F1B holds on the first stage and ZB-H1 on
/// all of them, min(p, m).
inline constexpr std::uint32_t slots_of_1f1b = ~0U;
inline constexpr std::uint32_t slots_of_stages = ~0U - 1;

/// What `slots` counts: microbatches, or their chunks (`slots` times the chunks of a stage).
enum class slot_unit_kind : std::uint8_t { microbatch, chunk };

/// [dispatch]: the choice of the next task, and the memory limits.
struct dispatch_options {
  dispatch_mode mode = dispatch_mode::ready;
  /// A known policy, "table:FILE.csv" or "lib:FILE.so".
  std::string policy = "bfw_plus";
  /// Maximum number of launches queued behind the running one.
  std::uint32_t lookahead = 0;
  /// Maximum number of microbatches that may hold memory on a stage; 0: no limit; empty:
  /// effective_limit() chooses.
  std::optional<std::uint32_t> slots;
  /// Maximum bytes that all microbatches together may hold on a stage; 0: no limit.
  std::uint64_t slot_bytes = 0;
  slot_unit_kind slot_unit = slot_unit_kind::microbatch;
  /// As stage_config::early_forwards.
  std::uint32_t early_forwards = 0;
  /// Launches into which each W is divided; empty: what the policy wants, or fewer where a launch
  /// costs much.
  std::optional<std::uint32_t> weight_pieces;
  admission admit = admission::loaded;
};

/// Decoder families, named as in Hugging Face transformers.
enum class architecture : std::uint8_t { gpt2, llama, qwen3 };

enum class activation_kind : std::uint8_t { gelu, gelu_tanh, silu, relu };

/// The type of activations and their gradients. Weights, weight gradients, the optimizer and the
/// loss are always float32.
enum class precision_kind : std::uint8_t { fp32, bf16 };

/// How Llama 3 stretches rotary positions beyond the context of its original training.
struct rope_scaling_options {
  /// 1: no stretching.
  double factor = 1.0;
  double low_frequency_factor = 1.0;
  double high_frequency_factor = 4.0;
  double original_context = 8192;

  bool operator==(const rope_scaling_options&) const = default;
};

/// [vision]: the vision transformer in front of the decoder.
struct vision_options {
  /// 0: no encoder and no images.
  std::uint32_t layers = 0;
  std::uint32_t hidden = 128;
  std::uint32_t heads = 4;
  /// 0: 4 * hidden.
  std::uint32_t feed_forward = 0;
  /// Side length of a patch, in pixels.
  std::uint32_t patch = 16;
  /// Side length in pixels of the images for which positions are learned; other sizes interpolate
  /// them.
  std::uint32_t image_size = 224;
  bool class_token = true;
  activation_kind activation = activation_kind::gelu;
  double norm_epsilon = 1e-12;
  /// Token id that marks the place of an image patch in a text.
  std::uint32_t image_token = 256;

  bool operator==(const vision_options&) const = default;
};

/// [model]
struct model_options {
  architecture family = architecture::gpt2;
  /// Folder with config.json and model.safetensors in the Hugging Face format; it sets the sizes
  /// and the initial weights. Empty: none.
  std::string pretrained;
  std::uint32_t layers = 4;
  std::uint32_t hidden = 128;
  std::uint32_t heads = 4;
  /// Number of key and value heads, shared by the query heads; 0: `heads`.
  std::uint32_t kv_heads = 0;
  /// Width of a head; 0: hidden / heads.
  std::uint32_t head_width = 0;
  /// Width of the feed-forward layers; 0: 4 * hidden.
  std::uint32_t feed_forward = 0;
  std::uint32_t vocabulary = 256;
  /// Maximum sequence length, in tokens.
  std::uint32_t context = 128;
  /// Empty: the family's default.
  std::optional<activation_kind> activation;
  double norm_epsilon = 1e-5;
  double rope_theta = 10000.0;
  rope_scaling_options rope_scaling;
  /// llama, qwen3: whether the attention projections have a bias.
  bool attention_bias = false;
  /// llama: whether the feed-forward projections have a bias.
  bool mlp_bias = false;
  precision_kind precision = precision_kind::fp32;
  /// Probability of dropping an element after the embedding and after each residual branch.
  double dropout = 0.0;
  /// Whether the head shares the weights of the token embedding.
  bool tied_head = false;
  vision_options vision;

  bool operator==(const model_options&) const = default;
};

/// Handling of a sample with more tokens than data.sequence_length: report an error, cut its end,
/// or skip it.
enum class too_long : std::uint8_t { stop, cut, skip };

/// `shuffled`: a new order for each epoch.
enum class sample_order : std::uint8_t { shuffled, file };

/// How the samples of a step are divided among its microbatches: in their order, or so that
/// microbatches and replicas have about equal work.
enum class sample_packing : std::uint8_t { order, cost };

/// How text becomes tokens.
enum class tokenizer_kind : std::uint8_t { bytes };

/// Handling of an unusable sample.
enum class bad_samples : std::uint8_t { stop, skip };

/// Where samples come from: training needs exactly one of these, an evaluation at most one.
struct data_sources {
  /// Files and folders whose bytes are the tokens: every regular file, in the order of the paths.
  std::vector<std::string> text;
  /// Files with one JSON object per line, each a document.
  std::vector<std::string> jsonl;
  /// Files NAME.bin with token ids, each described by NAME.json beside it.
  std::vector<std::string> tokens;
  /// Files with one JSON object per line, each a text with images.
  std::vector<std::string> images;
  /// Number of synthetic samples with coloured shapes and captions.
  std::uint32_t shapes = 0;

  bool operator==(const data_sources&) const = default;
};

/// [data]
struct data_options : data_sources {
  std::uint64_t shapes_seed = 1;
  /// Key of the text in the objects of `jsonl` and `images`.
  std::string text_key = "text";
  /// Number of sequences in a microbatch.
  std::uint32_t microbatch_size = 4;
  /// Number of tokens in a window of `text`; maximum for all other samples. At most model.context.
  std::uint32_t sequence_length = 128;
  too_long when_too_long = too_long::stop;
  sample_order order = sample_order::shuffled;
  sample_packing pack = sample_packing::order;
  /// Maximum number of tokens in a microbatch; a step has as few microbatches as this allows.
  /// 0: a step has pipeline.microbatches.
  std::uint32_t max_tokens = 0;
  /// Maximum number of steps for which a sample with much work waits for others of its kind.
  std::uint32_t pack_delay = 0;
  bad_samples when_bad = bad_samples::stop;
  /// Maximum length of an image's longer side, in pixels; larger images are scaled down to it.
  std::uint32_t image_side_max = 256;
  /// Normalization of colour values in [0, 1]: one value, or one each for red, green and blue.
  std::vector<double> image_mean{0.5};
  std::vector<double> image_std{0.5};
  /// Whether the images of the samples are dropped.
  bool blind = false;
  /// Empty: bytes. A pretrained model is trained on bytes only if this is set.
  std::optional<tokenizer_kind> tokenizer;

  /// Maximum number of tokens in a microbatch.
  std::uint64_t microbatch_tokens() const {
    return max_tokens != 0 ? max_tokens : std::uint64_t{microbatch_size} * sequence_length;
  }

  bool operator==(const data_options&) const = default;
};

/// [eval]: held-out data, which is read as [data] says.
struct eval_options : data_sources {
  /// Number of steps between two evaluations; 0: only after the last step.
  std::uint64_t every = 0;
  /// Number of batches of an evaluation, each of as many microbatches as a step.
  std::uint32_t batches = 8;
};

enum class optimizer_kind : std::uint8_t { adamw, sgd };

/// [train]
struct train_options {
  std::uint64_t steps = 100;
  std::uint64_t seed = 1;
  optimizer_kind optimizer = optimizer_kind::adamw;
  double lr = 3e-4;
  /// Learning rate at the end of the cosine decay.
  double lr_min = 0.0;
  /// Number of steps of linear warm-up from 0 to lr.
  std::uint64_t warmup_steps = 0;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;
  double momentum = 0.0;
  /// Maximum norm of the whole gradient; 0: no clipping.
  double clip_norm = 1.0;
  /// Initial factor of the loss for gradients in float16, as in torch.amp.GradScaler: a step whose
  /// gradient is infinite or NaN is skipped and halves the factor. 0: none.
  double loss_scale = 0;
  /// Number of consecutive steps without a skipped one after which the factor doubles.
  std::int64_t loss_scale_interval = 2000;
  /// If one update applies the gradients of several steps, they are the gradients of the mean over
  /// all loss terms of these steps, not of the sum of the steps' means. This is no key of a job:
  /// programs that count loss terms set it.
  bool averages_accumulation = false;
};

/// [jitter]: delays read from a file. The rest of the section is simulate::conditions.
struct delay_options {
  /// File with extra time per task and message (simulate::given_delays); empty: none.
  std::string file;
};

/// [cost]: expected durations, for simulations and as the scale of jitter. A list holds one value
/// for all parts, one per stage, one per virtual stage, or one per layer.
struct cost_options {
  std::vector<double> forward_ms{1.0};
  /// The input gradient alone; a fused backward takes backward_ms + weight_ms.
  std::vector<double> backward_ms{1.0};
  std::vector<double> weight_ms{1.0};
  /// Time from the end of a task to the arrival of its result at the next stage.
  double link_ms = 0.0;
  /// Speed of the device of each stage, or of all: tasks take their time divided by it.
  std::vector<double> speed{1.0};
};

enum class device_kind : std::uint8_t { cpu, cuda, emulated };

/// [device]: the device of a rank.
struct device_options {
  device_kind kind = device_kind::cpu;
  /// Emulated only: factor on the times of [cost] and [jitter].
  double time_scale = 1.0;
  /// Emulated only: bytes of a message between stages; 0: the size that the model would send.
  std::uint64_t message_bytes = 0;
};

/// [transport]: communication between the nodes of a job.
struct transport_options {
  /// Address or host name on which this node listens; other nodes must be able to reach it.
  std::string listen = "127.0.0.1";
  /// File with the shared key of the job. Empty: RRFP_KEY, or, on loopback, a key that the nodes
  /// of this user share.
  std::string key_file;
  /// Transports that UCX may use, as in UCX_TLS; "auto": all but TCP on one machine, between
  /// machines UCX chooses.
  std::string tls = "auto";
  /// Maximum bytes of large tensors that a node fetches at the same time.
  std::uint64_t inflight_bytes = std::uint64_t{256} << 20;
  std::uint32_t heartbeat_ms = 200;
  std::uint32_t node_timeout_ms = 10'000;
  double join_timeout_s = 60;
};

enum class resume_kind : std::uint8_t { automatic, never, must };

/// [checkpoint]: saving and resuming.
struct checkpoint_options {
  /// Folder for checkpoints, shared by all nodes; empty: no checkpoints. Each run of a comparison
  /// gets its own subfolder.
  std::string dir;
  /// Number of steps between checkpoints; 0: only at the end or on an interrupt.
  std::uint64_t every = 0;
  /// Number of newest checkpoints to keep.
  std::uint32_t keep = 3;
  resume_kind resume = resume_kind::automatic;
};

/// What the job does while a lost node has no replacement. wait: the job waits for a replacement.
/// reroute: nodes of other replicas compute the lost node's ranks until a replacement has joined.
enum class loss_kind : std::uint8_t { wait, reroute };

/// [recovery]: going on after the loss of a node.
struct recovery_options {
  /// Number of losses after which the job goes on; 0: the first loss ends it.
  std::uint32_t max_restarts = 0;
  /// Number of steps between two copies of the state in the memory of the nodes.
  std::uint32_t every = 1;
  /// How long the other nodes wait for the replacement of a lost one.
  double hold_s = 120;
  loss_kind without_replacement = loss_kind::wait;
  /// Number of nodes, the last ones, that host no rank until they take the place of a lost one.
  std::uint32_t spares = 0;

  bool may_lack_nodes() const { return without_replacement == loss_kind::reroute || spares > 0; }
};

/// Whether an address or host name is loopback: "localhost", "127.0.0.1", "::1".
bool is_loopback(std::string_view host);

/// automatic: live progress on a terminal, plain lines elsewhere.
enum class progress_kind : std::uint8_t { automatic, lines, none };

/// [run]: progress output and hang detection.
struct run_options {
  /// Time without progress after which the run ends with a hang report; 0: never.
  double hang_timeout_s = 60.0;
  progress_kind progress = progress_kind::automatic;
  /// Time for which idle threads of stages and ranks poll for work before they sleep.
  std::uint32_t spin_us = 0;
};

/// The data key that the job sets, such as "data.jsonl"; the first one if it sets several.
inline std::string_view key_of(const data_options& data) {
  if (!data.text.empty()) return "data.text";
  if (!data.jsonl.empty()) return "data.jsonl";
  if (!data.tokens.empty()) return "data.tokens";
  if (!data.images.empty()) return "data.images";
  return data.shapes > 0 ? "data.shapes" : "data.text";
}

}  // namespace rrfp::job
