/// Transcripts of the transport's core: a line for each call, then its answer, the counters that
/// have changed, and the nodes' ends that it left to settle.
///
///   transport node 1 eager 8 message_max 100 inflight_max 150    a new core, of job 7, epoch 2
///   connect 0
///   send 0 20                  a tensor of 20 bytes to node 0
///   tensor 0 5 20              number 5 from node 0, of 20 bytes; then, if they differ: sent 21,
///                              announced 3 (descriptor 3), job 8, epoch 1
///   send_actor_message 0 20    of 20 bytes to node 0
///   actor_message 0 5 20       number 5 from node 0, as a tensor; then what is now in order
///   delivered done             what became of the last message that was to be delivered
///   fetched 3 [WHY]            the fetch of descriptor 3 has ended, or failed
#include <functional>

#include <rrfp/core/transport_core.hpp>

#include "core_transcripts.hpp"

namespace rrfp::messaging {
namespace {

using rrfp::testing::words;

constexpr const char* dispositions[] = {"drop", "deliver", "keep"};
constexpr const char* deliveries[] = {"done",      "closed", "damaged", "no_memory",
                                      "not_bound", "full",   "garbled"};

/// Links and descriptors are numbers; null is none.
void* to_pointer(std::uint64_t number) { return reinterpret_cast<void*>(number + 1); }
std::string text_of(const void* pointer) {
  return std::to_string(reinterpret_cast<std::uintptr_t>(pointer) - 1);
}

/// A message of this size that begins with its number.
std::string numbered(std::uint64_t sequence, std::uint64_t bytes) {
  auto message = std::to_string(sequence) + ' ';
  message.resize(std::max<std::size_t>(message.size(), bytes), ' ');
  return message;
}

class player {
 public:
  std::string answer(words& w) {
    const auto kind = w.next();
    if (kind == "transport") {
      begin(w);
      return {};
    }
    auto& core = core_.value();
    const auto before = core.counts();
    const auto out = answer_of(kind, w);
    return out + changes(before, core.counts()) + (core.has_ends() ? "  ends\n" : "");
  }

 private:
  void begin(words& w) {
    transport_core_options o;
    o.job_token = 7;
    o.epoch = 2;
    while (w.more()) {
      const auto key = w.next();
      const auto value = w.number();
      if (key == "node")
        o.node = node_id{static_cast<std::uint32_t>(value)};
      else if (key == "eager")
        o.eager_bytes_max = value;
      else if (key == "message_max")
        o.message_bytes_max = value;
      else if (key == "inflight_max")
        o.inflight_bytes_max = value;
      else if (key == "actor_message_max")
        o.actor_message_bytes_max = value;
      else
        throw std::invalid_argument("unknown option '" + key + "'");
    }
    core_.emplace(o);
    kept_.clear();
  }

  std::string answer_of(const std::string& kind, words& w) {
    auto& core = core_.value();
    if (kind == "connect") {
      const auto n = node(w);
      const auto may = core.may_connect(n);
      if (may) core.connected(n, to_pointer(n.value()));
      return may ? "" : "  refused: " + may.message() + "\n";
    }
    if (kind == "fail" || kind == "broke") {
      const auto n = node(w);
      if (kind == "fail")
        core.fail(n, w.rest());
      else
        core.broke(n, w.rest());
      return {};
    }
    if (kind == "settle") return settle();
    if (kind == "send") {
      const auto to = node(w);
      tensor_header h;
      h.message.to.stage = stage_id{to.value()};
      h.data_bytes = w.number();
      if (!core.number(to, h)) return "  drop\n";
      return "  number " + std::to_string(h.sequence) + "\n" + to_text(core.link_for(to, h));
    }
    if (kind == "send_actor_message") {
      const auto to = node(w);
      actor_message_header h;
      h.data_bytes = w.number();
      if (!core.number(to, h)) return "  drop\n";
      return "  number " + std::to_string(h.sequence) + "\n" + to_text(core.link_for(to, h));
    }
    if (kind == "send_bytes") {
      const auto to = node(w);
      bytes_header h;
      h.data_bytes = w.number();
      return to_text(core.link_for(to, h));
    }
    if (kind == "send_disconnect") return to_text(core.link_to(node(w)));
    if (kind == "tensor" || kind == "piece") {
      tensor_header h;
      if (kind == "piece") h.message.kind = payload::copy_piece;
      h.from_node = node(w);
      h.sequence = w.number();
      h.message.from.stage = stage_id{h.from_node.value()};
      h.message.to.stage = stage_id{1};
      return arrive(h, w);
    }
    if (kind == "actor_message") {
      actor_message_header h;
      h.from_node = node(w);
      h.sequence = w.number();
      auto out = arrive(h, w);
      if (out.starts_with("  deliver"))
        for (const auto& message : core.in_order(h, numbered(h.sequence, h.data_bytes)))
          out += "  read " + message.substr(0, message.find(' ')) + "\n";
      return out;
    }
    if (kind == "bytes") {
      bytes_header h;
      h.from_node = node(w);
      h.from = rank_id{h.from_node.value()};
      h.to = rank_id{1};
      return arrive(h, w);
    }
    if (kind == "disconnect") {
      disconnect_header h{7, 2, node(w), false};
      while (w.more()) {
        const auto key = w.next();
        if (key == "answer")
          h.is_answer = true;
        else
          identify(h, key, w);
      }
      const auto answer = core.arrived(h);
      return answer.link == nullptr ? "" : to_text(answer);
    }
    if (kind == "undecodable") {
      core.arrived_undecodable();
      return {};
    }
    if (kind == "fetch") return fetch();
    if (kind == "fetched") {
      const auto& header = kept_.at(w.number());
      deliver_ = [header](transport_core& c, delivery how) {
        std::visit([&](const auto& h) { c.delivered(h, how); }, header);
      };
      return to_text(core.fetched(header, w.rest()));
    }
    if (kind == "delivered") {
      const auto how = w.one_of<delivery>(deliveries);
      deliver_(core, how);
      return {};
    }
    if (kind == "close") {
      std::string out;
      for (const auto* const d : core.close()) out += "  release " + text_of(d) + "\n";
      return out;
    }
    if (kind == "close_links") {
      std::string out;
      for (const auto* const l : core.close_links()) out += "  close " + text_of(l) + "\n";
      return out;
    }
    if (kind == "all_answered") return core.all_answered() ? "  yes\n" : "  no\n";
    throw std::invalid_argument("unknown event '" + kind + "'");
  }

  static node_id node(words& w) { return node_id{static_cast<std::uint32_t>(w.number())}; }

  static std::string to_text(chosen_link d) {
    if (d.link == nullptr) return "  drop\n";
    return "  send over " + text_of(d.link) + (d.is_announced ? " announced\n" : "\n");
  }
  static std::string to_text(disposition f) {
    return std::string{"  "} + dispositions[static_cast<int>(f)] + "\n";
  }

  template <class Header>
  static void identify(Header& h, const std::string& key, words& w) {
    if (key == "job")
      h.job_token = w.number();
    else if (key == "epoch")
      h.epoch = static_cast<std::uint32_t>(w.number());
    else
      throw std::invalid_argument("unknown word '" + key + "'");
  }

  template <class Header>
  std::string arrive(Header& h, words& w) {
    h.job_token = 7;
    h.epoch = 2;
    h.data_bytes = w.number();
    auto bytes = h.data_bytes;
    std::optional<std::uint64_t> descriptor;
    while (w.more()) {
      const auto key = w.next();
      if (key == "sent")
        bytes = w.number();
      else if (key == "announced")
        descriptor = w.number();
      else
        identify(h, key, w);
    }
    const auto what = core_->arrived(h, bytes, descriptor ? to_pointer(*descriptor) : nullptr);
    if (what == disposition::deliver)
      deliver_ = [h](transport_core& core, delivery how) { core.delivered(h, how); };
    return to_text(what);
  }

  std::string fetch() {
    const auto next = core_->next_fetch();
    if (!next) return "  wait\n";
    const auto descriptor = text_of(next->descriptor);
    if (next->is_stale) return "  release " + descriptor + "\n";
    kept_[std::stoull(descriptor)] = next->header;
    return "  fetch " + descriptor + "\n";
  }

  std::string settle() {
    std::string out;
    for (const auto& e : core_->settle()) {
      if (e.broken_link != nullptr) out += "  close " + text_of(e.broken_link) + "\n";
      if (e.is_new) out += (e.has_failed ? "  failed: " : "  left: ") + e.why + "\n";
    }
    return out;
  }

  static std::string changes(const transport_counts& before, const transport_counts& after) {
    std::string out;
    const auto compare = [&](const char* name, std::uint64_t transport_counts::*counter) {
      if (before.*counter != after.*counter)
        out += std::string{"  "} + name + " " + std::to_string(after.*counter) + "\n";
    };
    compare("sent", &transport_counts::sent);
    compare("sent_bytes", &transport_counts::sent_bytes);
    compare("received", &transport_counts::received);
    compare("received_bytes", &transport_counts::received_bytes);
    compare("dropped_duplicate", &transport_counts::dropped_duplicate);
    compare("dropped_stale", &transport_counts::dropped_stale);
    compare("dropped_invalid", &transport_counts::dropped_invalid);
    compare("dropped_unreachable", &transport_counts::dropped_unreachable);
    compare("waiting", &transport_counts::announced);
    compare("inflight_bytes", &transport_counts::inflight_bytes);
    compare("inflight_bytes_peak", &transport_counts::inflight_bytes_peak);
    return out;
  }

  std::optional<transport_core> core_;
  std::map<std::uint64_t, any_header> kept_;  ///< by descriptor
  /// The last message that was to be delivered has become this.
  std::function<void(transport_core&, delivery)> deliver_;
};

std::string replayed(const std::string& text) {
  player p;
  return rrfp::testing::replay(text, [&](words& w) { return p.answer(w); });
}

}  // namespace

TEST_CASE("The transport's core answers every call of a transcript as before") {
  rrfp::testing::check_transcripts(RRFP_TESTDATA, 6, replayed);
}

TEST_CASE("A line that is not a call of the transport's core is answered with what was expected") {
  CHECK(replayed("transport node 1\nhello\n") ==
        "transport node 1\nhello\n  error: unknown event 'hello'\n");
}

}  // namespace rrfp::messaging
