/// Tensors of Python as buffers of the runtime and back, without a copy: capsules of DLPack.
#pragma once

#include <algorithm>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include <dlpack/dlpack.h>
#include <pybind11/pybind11.h>

#include <rrfp/base/tensor_buffer.hpp>

namespace rrfp::python {

namespace py = pybind11;

/// The names of the protocol: a capsule that nobody has taken yet, and a taken one.
inline constexpr const char* unused_capsule = "dltensor";
inline constexpr const char* used_capsule = "used_dltensor";

struct dlpack_type {
  dtype type;
  DLDataType as;
  const char* name;  ///< torch's
};

/// What both sides know; booleans and 8-bit floats travel as bytes (the first entry).
inline constexpr dlpack_type dlpack_types[] = {
    {dtype::uint8, {kDLUInt, 8, 1}, "uint8"},
    {dtype::int8, {kDLInt, 8, 1}, "int8"},
    {dtype::int16, {kDLInt, 16, 1}, "int16"},
    {dtype::int32, {kDLInt, 32, 1}, "int32"},
    {dtype::int64, {kDLInt, 64, 1}, "int64"},
    {dtype::float16, {kDLFloat, 16, 1}, "float16"},
    {dtype::bfloat16, {kDLBfloat, 16, 1}, "bfloat16"},
    {dtype::float32, {kDLFloat, 32, 1}, "float32"},
    {dtype::float64, {kDLFloat, 64, 1}, "float64"},
    {dtype::boolean, {kDLUInt, 8, 1}, "bool"},
    {dtype::uint16, {kDLUInt, 16, 1}, "uint16"},
    {dtype::uint32, {kDLUInt, 32, 1}, "uint32"},
    {dtype::uint64, {kDLUInt, 64, 1}, "uint64"},
};

inline const char* name_of(dtype type) {
  for (const auto& known : dlpack_types)
    if (known.type == type) return known.name;
  return "other";
}

/// dtype::other: there is none.
inline dtype dtype_of(const std::string& name) {
  for (const auto& known : dlpack_types)
    if (known.name == name) return known.type;
  return dtype::other;
}

/// Takes the tensor of a capsule, which must be contiguous and on the host.
inline tensor_buffer buffer_of(const py::capsule& capsule) {
  class owner final : public buffer_owner {
   public:
    explicit owner(DLManagedTensor* t) : tensor_(t) {}
    ~owner() override {
      if (tensor_->deleter != nullptr) tensor_->deleter(tensor_);
    }

   private:
    DLManagedTensor* const tensor_;
  };

  auto* const managed =
      static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), unused_capsule));
  if (managed == nullptr) throw py::error_already_set();
  const auto& t = managed->dl_tensor;
  tensor_buffer b;
  const auto* const known =
      std::find_if(std::begin(dlpack_types), std::end(dlpack_types), [&](const auto& one) {
        return one.as.code == t.dtype.code && one.as.bits == t.dtype.bits && t.dtype.lanes == 1;
      });
  bool fits = known != std::end(dlpack_types) && t.device.device_type == kDLCPU;
  if (fits) b.type = known->type;
  b.sizes.assign(t.shape, t.shape + t.ndim);
  std::int64_t expected = 1;
  for (int d = t.ndim; d-- > 0; expected *= t.shape[d])
    if (t.strides != nullptr && t.shape[d] != 1 && t.strides[d] != expected && b.elements() != 0)
      fits = false;
  if (!fits)
    throw std::invalid_argument(
        "between stages: expected a contiguous tensor on the CPU of a type that DLPack has");
  PyCapsule_SetName(capsule.ptr(), used_capsule);
  b.data = static_cast<char*>(t.data) + t.byte_offset;
  b.owner = std::make_shared<owner>(managed);
  return b;
}

/// A capsule that shares the memory of `b`, contiguous and on the host.
inline py::capsule capsule_of(tensor_buffer b) {
  struct exported {
    tensor_buffer held;
    DLManagedTensor tensor{};
  };
  auto made = std::make_unique<exported>();
  made->held = std::move(b);
  auto& t = made->tensor.dl_tensor;
  t.data = made->held.data;
  t.device = {kDLCPU, 0};
  t.ndim = static_cast<int>(made->held.sizes.size());
  t.shape = made->held.sizes.data();
  for (const auto& known : dlpack_types)
    if (known.type == made->held.type) t.dtype = known.as;
  made->tensor.manager_ctx = made.get();
  made->tensor.deleter = [](DLManagedTensor* self) {
    delete static_cast<exported*>(self->manager_ctx);
  };
  auto* const managed = &made.release()->tensor;
  return py::capsule(managed, unused_capsule, [](PyObject* capsule) {
    if (PyCapsule_IsValid(capsule, unused_capsule) == 0) return;
    auto* const left =
        static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule, unused_capsule));
    left->deleter(left);
  });
}

}  // namespace rrfp::python
