/// rrfp.pack(): steps as lists, and the work of samples. Refusals are ValueErrors.
#pragma once

#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include <pybind11/stl.h>
#include <rrfp/workload/packer.hpp>
#include <rrfp/workload/work_model.hpp>

#include "gil.hpp"

namespace rrfp::python {

template <class T>
T accepted(result<T> r) {
  if (!r) throw py::value_error(r.message());
  return std::move(*r);
}

inline workload::packer make_packer(const std::vector<std::uint64_t>& tokens,
                                    const std::vector<double>& costs,
                                    const workload::pack_options& options) {
  std::vector<workload::sample_work> samples;
  samples.reserve(tokens.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) samples.push_back({tokens[i], costs[i]});
  return accepted(workload::packer::make(std::move(samples), options));
}

/// Microbatches, tokens and costs, each by replica and microbatch; the steps that samples waited.
inline py::tuple next_step(workload::packer& p) {
  const auto step = without_gil([&] { return p.next(); });
  std::vector<std::vector<std::uint64_t>> tokens;
  std::vector<std::vector<double>> costs;
  for (const auto& parts : step.replicas) {
    tokens.emplace_back(parts.size());
    costs.emplace_back(parts.size());
    for (std::size_t mb = 0; mb < parts.size(); ++mb)
      for (const auto i : parts[mb]) {
        tokens.back()[mb] += p.samples()[i].tokens;
        costs.back()[mb] += p.samples()[i].work;
      }
  }
  py::dict delays;
  for (const auto& [sample, steps] : step.delays) delays[py::int_(sample)] = steps;
  return py::make_tuple(step.replicas, tokens, costs, delays);
}

using position_values = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t,
                                   std::vector<std::pair<std::uint32_t, std::uint64_t>>>;

/// Epoch, step, place in the order, and the samples that wait, each with the step of its place.
inline position_values values_of(const workload::pack_position& at) {
  position_values values{at.epoch, at.step, at.next, {}};
  for (const auto& h : at.held) std::get<3>(values).emplace_back(h.sample, h.since);
  return values;
}

inline void go_to(workload::packer& p, const position_values& values) {
  const auto& [epoch, step, next, held] = values;
  workload::pack_position at{epoch, step, next, {}};
  for (const auto& [sample, since] : held) at.held.push_back({sample, since});
  accepted(p.go_to(std::move(at)));
}

/// The coefficients in the order of rrfp.CostModel.
using cost_values = std::tuple<double, double, double, double>;

inline cost_values values_of(const workload::work_model& m) {
  return {m.per_token, m.per_token_square, m.per_patch, m.per_patch_square};
}

/// Rows of tokens, their squares, patches, their squares, seconds. Returns the constant, too.
inline std::pair<cost_values, double> fit_cost(const std::vector<std::vector<double>>& rows) {
  std::vector<workload::measured_work> measured;
  for (const auto& r : rows) measured.push_back({r.at(0), r.at(1), r.at(2), r.at(3), r.at(4)});
  const auto fitted = accepted(workload::fit(measured));
  return {values_of(fitted.model), fitted.constant_s};
}

inline void add_packing(py::module_& m) {
  py::class_<workload::packer>(m, "Packer")
      .def(py::init([](const std::vector<std::uint64_t>& tokens, const std::vector<double>& costs,
                       std::uint64_t max_tokens, std::uint32_t microbatches, std::uint32_t replicas,
                       std::uint64_t batch_size, std::uint64_t batch_tokens, std::uint32_t delay,
                       bool shuffle, bool drop_last, std::uint64_t seed) {
             return make_packer(tokens, costs,
                                {max_tokens, microbatches, replicas, batch_size, batch_tokens,
                                 delay, shuffle, drop_last, seed});
           }),
           py::arg("tokens"), py::arg("costs"), py::kw_only(), py::arg("max_tokens"),
           py::arg("microbatches"), py::arg("replicas"), py::arg("batch_size"),
           py::arg("batch_tokens"), py::arg("delay"), py::arg("shuffle"), py::arg("drop_last"),
           py::arg("seed"))
      .def("next", &next_step)
      .def_property_readonly("position",
                             [](const workload::packer& p) { return values_of(p.position()); })
      .def("go_to", &go_to, py::arg("position"))
      .def("copy", [](const workload::packer& p) { return workload::packer{p}; });
  m.def(
      "training_flops",
      [](const workload::block& layer, std::uint32_t layers, std::uint32_t vocabulary,
         const workload::block& image_layer, std::uint32_t image_layers,
         std::uint32_t patches_per_token) {
        workload::model of;
        of.text = {layer, layers, vocabulary};
        if (image_layers != 0)
          of.images = workload::encoder{image_layer, image_layers, 0, patches_per_token};
        return values_of(workload::training_flops(of));
      },
      py::arg("layer"), py::arg("layers"), py::arg("vocabulary"), py::arg("image_layer"),
      py::arg("image_layers"), py::arg("patches_per_token"));
  m.def("fit_cost", &fit_cost, py::arg("rows"));
  py::class_<workload::block>(m, "Block")
      .def(py::init<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t, bool,
                    bool, std::uint32_t, std::uint32_t>(),
           py::kw_only(), py::arg("hidden"), py::arg("heads"), py::arg("kv_heads"),
           py::arg("head_dim"), py::arg("feed_forward"), py::arg("gated"), py::arg("causal"),
           py::arg("experts"), py::arg("experts_per_token"));
}

}  // namespace rrfp::python
