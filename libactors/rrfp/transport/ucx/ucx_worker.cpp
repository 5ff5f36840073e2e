#include "ucx_worker.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include <ucs/config/global_opts.h>

#include "wire_format.hpp"

namespace rrfp::actors::ucx {

namespace {

constexpr std::string_view address_magic = "rrfp-ucx-address-1";

std::string framed(std::string_view raw) {
  const auto hash = hash_of(std::as_bytes(std::span{raw}));
  std::string out{address_magic};
  out.append(reinterpret_cast<const char*>(&hash), sizeof hash);
  return out.append(raw);
}

result<std::string> unframed(const std::string& address) {
  std::uint64_t hash = 0;
  if (!address.starts_with(address_magic) || address.size() <= address_magic.size() + sizeof hash)
    return error{"not the UCX address of a node (" + std::to_string(address.size()) + " bytes)"};
  std::memcpy(&hash, address.data() + address_magic.size(), sizeof hash);
  const auto raw = address.substr(address_magic.size() + sizeof hash);
  if (hash_of(std::as_bytes(std::span{raw})) != hash)
    return error{"the UCX address of a node is damaged: its checksum does not match"};
  return raw;
}

bool environment_has(std::initializer_list<const char*> names) {
  for (const auto* const name : names)
    if (std::getenv(name) != nullptr) return true;
  return false;
}

/// Whether `tls` allows shared memory; UCX warns about unused settings.
bool may_share_memory(const std::string& tls) {
  if (tls.empty() || tls.front() == '^') return true;
  for (const auto* const name : {"all", "posix", "sysv", "shm", "sm", "mm"})
    if (tls.find(name) != std::string::npos) return true;
  return false;
}

/// Makes UCX ask CUDA whose memory an address is. Its cache takes memory for the host's that was
/// allocated before the first worker was opened, as a framework's allocator does, and UCX from 1.14
/// on then reads it as such, whatever memory type a request names.
void ask_for_memory_types() {
  if (!environment_has({"UCX_MEMTYPE_CACHE"})) ucs_global_opts_set_value("MEMTYPE_CACHE", "n");
}

/// The environment overrides the options.
void configure(ucp_config_t* config, const ucx_options& options) {
  const char* const chosen = std::getenv("UCX_TLS");
  const std::string tls = chosen != nullptr ? chosen : options.tls;
  if (chosen == nullptr && !tls.empty()) ucp_config_modify(config, "TLS", tls.c_str());
  if (!options.net_devices.empty() && !environment_has({"UCX_NET_DEVICES"}))
    ucp_config_modify(config, "NET_DEVICES", options.net_devices.c_str());
  if (!environment_has({"UCX_KEEPALIVE_INTERVAL"}))
    ucp_config_modify(config, "KEEPALIVE_INTERVAL",
                      (std::to_string(options.keepalive.count()) + "ms").c_str());
  // Without it shared memory cannot report the death of a peer, and UCX refuses it or uses tcp.
  // In UCX 1.13 the setting has the prefix of the family of posix and sysv.
  if (may_share_memory(tls) &&
      !environment_has({"UCX_POSIX_ERROR_HANDLING", "UCX_SYSV_ERROR_HANDLING",
                        "UCX_MM_ERROR_HANDLING", "UCX_ERROR_HANDLING"}))
    ucp_config_modify(config, "MM_ERROR_HANDLING", "y");
}

/// Which transports it was told to use, for errors.
std::string chosen_by(const ucx_options& options) {
  if (const char* const chosen = std::getenv("UCX_TLS"))
    return std::string{" with UCX_TLS="} + chosen;
  return options.tls.empty() ? "" : " with transport.tls = \"" + options.tls + "\"";
}

}  // namespace

std::string said(ucs_status_t code) {
  return std::string{"UCX says \""} + ucs_status_string(code) + "\"";
}

error ucx_error(const std::string& what, ucs_status_t code) { return {what + ": " + said(code)}; }

result<worker> worker::open(const ucx_options& options) {
  ask_for_memory_types();
  ucp_config_t* config = nullptr;
  if (const auto s = ucp_config_read(nullptr, nullptr, &config); s != UCS_OK)
    return ucx_error("reading UCX's settings from the environment", s);
  configure(config, options);

  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  ucp_context_h context = nullptr;
  const auto initialised = ucp_init(&params, config, &context);
  ucp_config_release(config);
  if (initialised != UCS_OK) return ucx_error("initialising UCX" + chosen_by(options), initialised);
  worker w;
  w.context_.reset(context);

  ucp_context_attr_t can{};
  can.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  if (ucp_context_query(context, &can) == UCS_OK)
    w.takes_cuda_ = (can.memory_types & (1U << UCS_MEMORY_TYPE_CUDA)) != 0;

  ucp_worker_params_t how{};
  how.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  how.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  ucp_worker_h handle = nullptr;
  if (const auto s = ucp_worker_create(context, &how, &handle); s != UCS_OK)
    return ucx_error("creating a UCX worker", s);
  w.worker_.reset(handle);
  if (const auto s = ucp_worker_get_efd(handle, &w.event_descriptor_); s != UCS_OK)
    return ucx_error("asking UCX for a descriptor to sleep on", s);

  ucp_worker_attr_t limits{};
  limits.field_mask = UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER;
  ucp_worker_query(handle, &limits);
  if (limits.max_am_header < header_bytes_max)
    return error{"UCX's transports take headers of " + std::to_string(limits.max_am_header) +
                 " bytes, expected at least " + std::to_string(header_bytes_max)};

  ucp_address_t* raw = nullptr;
  std::size_t size = 0;
  if (const auto s = ucp_worker_get_address(handle, &raw, &size); s != UCS_OK)
    return ucx_error("asking UCX for the worker's address", s);
  w.address_ = framed({reinterpret_cast<const char*>(raw), size});
  ucp_worker_release_address(handle, raw);
  return w;
}

result<ucp_ep_h> worker::connect(const std::string& address, ucp_err_handler_cb_t failed,
                                 void* arg) {
  const auto raw = unframed(address);
  if (!raw) return raw.failure();
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(raw->data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {failed, arg};
  ucp_ep_h endpoint = nullptr;
  if (const auto s = ucp_ep_create(handle(), &params, &endpoint); s != UCS_OK)
    return ucx_error(s == UCS_ERR_UNREACHABLE
                         ? "connecting (UCX_TLS must be the same on all nodes; containers on one "
                           "machine that share no memory need transport.tls = \"all\")"
                         : "connecting",
                     s);
  return endpoint;
}

std::string lanes_of(ucp_ep_h endpoint) {
  char* text = nullptr;
  std::size_t size = 0;
  auto* const stream = open_memstream(&text, &size);
  if (stream == nullptr) return "unknown";
  ucp_ep_print_info(endpoint, stream);
  std::fclose(stream);
  std::istringstream lines{std::string(text, size)};
  std::free(text);
  std::string found;
  // "#  lane[0]:  2:posix/memory.0 md[1]  -> ..."
  for (std::string line; std::getline(lines, line);) {
    const auto lane = line.find("lane[");
    const auto colon = lane == std::string::npos ? lane : line.find(':', line.find("]:", lane) + 2);
    if (colon == std::string::npos) continue;
    const auto name = line.substr(colon + 1, line.find_first_of(". ", colon) - colon - 1);
    if (found.find(name) != std::string::npos) continue;
    found += (found.empty() ? "" : " ") + name;
  }
  return found.empty() ? "unknown" : found;
}

}  // namespace rrfp::actors::ucx
