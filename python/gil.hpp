/// The GIL, and errors: who holds it, and what each side throws.
///
/// Every function of Python that a thread of the pipeline calls takes the GIL; every call of the
/// pipeline that waits has released it.
#pragma once

#include <cxxabi.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include <pybind11/pybind11.h>

#include <rrfp/base/exit_code.hpp>
#include <rrfp/compute/compute_error.hpp>

namespace rrfp::python {

namespace py = pybind11;
using namespace py::literals;

/// Runs `work`, which may ask for the GIL. When the interpreter is gone, Python ends a thread that asks, by unwinding
/// its stack, which would give back a GIL that another thread holds: such a thread waits here for the end of the
/// process.
template <class Work>
auto unless_ended(Work work) {
  try {
    return work();
  } catch (const abi::__forced_unwind&) {
    for (;;) ::pause();
  }
}

/// Runs `work` with the GIL, unless the interpreter is gone.
template <class Work>
auto holding_gil(Work work) {
  return unless_ended([&] {
    const py::gil_scoped_acquire gil;
    return unless_ended(work);
  });
}

/// A Python object that any thread may release. After the interpreter has ended it is left alone.
inline std::shared_ptr<py::object> shared(py::object object) {
  return {new py::object{std::move(object)}, [](py::object* held) {
            if (Py_IsInitialized() != 0) holding_gil([&] { delete held; });
          }};
}

/// The Python state of a thread of the runtime, which lives as long as the thread. Without it pybind11 makes a
/// state for each call, whose stack Python maps and unmaps. What a hook raises in a backward belongs to this state,
/// too, and is read after the hook has given back the GIL.
class thread_state {
 public:
  static void keep() { static const thread_local thread_state object; }
  thread_state(const thread_state&) = delete;
  thread_state& operator=(const thread_state&) = delete;
  ~thread_state() {
    if (state_ == nullptr || Py_IsInitialized() == 0) return;
    PyEval_RestoreThread(state_);
    // What a threading.local() holds may take the GIL as it is destroyed, as the graph of a tensor does. The last
    // release would then end the state a second time.
    if (auto* const locals = PyThreadState_GetDict(); locals != nullptr) PyDict_Clear(locals);
    PyGILState_Release(PyGILState_UNLOCKED);
  }

 private:
  thread_state() : state_(PyGILState_GetThisThreadState() == nullptr ? made() : nullptr) {}
  static PyThreadState* made() {
    PyGILState_Ensure();
    return PyEval_SaveThread();
  }

  PyThreadState* const state_;  ///< null on a thread that Python started
};

/// Runs `work` with the GIL. What Python raises becomes a std::runtime_error with its message: the
/// exception itself may only be used with the GIL. `keeper`, a _rank.Kept, keeps it for the program. An
/// rrfp.Error of kind "bad_input" becomes a compute_error.
template <class Work>
auto with_gil(Work work, const py::object* keeper = nullptr) {
  unless_ended(thread_state::keep);
  return holding_gil([&] {
    try {
      return work();
    } catch (const py::error_already_set& e) {
      std::string why;
      bool is_input = false;
      if (keeper != nullptr) {
        std::tie(why, is_input) = keeper->attr("keep")(e.value()).template cast<std::pair<std::string, bool>>();
      } else {
        const auto name = py::str(py::type::of(e.value()).attr("__name__"));
        why = py::str(e.value());
        if (why.empty()) why = name;
        is_input = py::str(py::getattr(e.value(), "kind", py::none())).equal(py::str("bad_input"));
        // The program gets it later, as would the next call of Python here.
        if (e.matches(PyExc_KeyboardInterrupt)) PyErr_SetInterrupt();
      }
      if (is_input) throw compute::compute_error(compute::compute_fault::data, why);
      throw std::runtime_error(why);
    }
  });
}

/// A hook of the program for texts. What it raises has no caller to go to: sys.unraisablehook shows
/// it.
inline std::function<void(const std::string&)> text_hook(const char* name, py::object to) {
  return [name, to = shared(std::move(to))](const std::string& text) {
    holding_gil([&] {
      try {
        (*to)(text);
      } catch (py::error_already_set& e) {
        e.discard_as_unraisable(name);
      }
    });
  };
}

/// By error_kind.
inline constexpr const char* error_kinds[] = {"bad_input", "failed", "node_lost", "interrupted"};

[[noreturn]] inline void raise(const error& e) {
  const auto type = py::module_::import("rrfp._errors").attr("Error");
  const auto made = type(e.message, error_kinds[static_cast<std::size_t>(e.kind)], static_cast<int>(exit_code_of(e.kind)));
  PyErr_SetObject(type.ptr(), made.ptr());
  throw py::error_already_set();
}

/// For work without the GIL that takes long: lets Python handle signals; throws what a handler raises.
inline void check_signals() {
  holding_gil([] {
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  });
}

template <class Work>
auto without_gil(Work work) {
  const py::gil_scoped_release no_gil;
  return work();
}

template <class T>
T value_of(result<T> r) {
  if (!r) raise(r.failure());
  return std::move(*r);
}

inline void check(const status& s) {
  if (!s) raise(s.failure());
}

}  // namespace rrfp::python
