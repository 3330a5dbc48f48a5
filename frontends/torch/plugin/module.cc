// The Python module gradpress._core: what the package cannot do without C++.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/jit/python/python_ivalue.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "device_session.h"
#include "raw_all_reduce.h"
#include "session.h"

namespace py = pybind11;

namespace gradpress::plugin {

namespace {

using Future = c10::intrusive_ptr<c10::ivalue::Future>;
using PyFuture = std::shared_ptr<torch::jit::PythonFutureWrapper>;
using ProcessGroup = c10::intrusive_ptr<c10d::ProcessGroup>;

/// A peer that is gone, as Python sees it.
class PeerLost : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[noreturn]] void raise(const Status& status) {
  if (status.code() == Code::kInvalidArgument) throw py::value_error(status.message());
  if (status.code() == Code::kPeerLost) throw PeerLost(status.message());
  throw std::runtime_error(status.to_string());
}

void check(const Status& status) {
  if (!status.is_ok()) raise(status);
}

template <class T>
T value_of(Result<T>&& result) {
  if (!result) raise(result.error());
  return std::move(*result);
}

/// The value of a hook's future must be a Python object, and making one takes Python's lock: it is
/// made when the bucket comes, so that the thread which completes the future needs no lock.
c10::IValue as_object(const at::Tensor& tensor) {
  return c10::ivalue::ConcretePyObjectHolder::create(py::cast(tensor));
}

PyFuture wrapped(Future future) {
  return std::make_shared<torch::jit::PythonFutureWrapper>(std::move(future));
}

/// Completes the future when its step has ended.
GradientThread::Done completing(const Future& future, c10::IValue value) {
  return [future, value = std::move(value)](const Status& status) {
    if (status.is_ok()) {
      future->markCompleted(value);
    } else {
      future->setError(std::make_exception_ptr(std::runtime_error(status.to_string())));
    }
  };
}

/// The session, ended without Python's lock: its thread may want it.
class Handle {
 public:
  explicit Handle(std::unique_ptr<Session> session) : session_(std::move(session)) {}
  ~Handle() { close(); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  /// By Python's own calls: pybind11's lock may throw, which a destructor must not.
  void close() noexcept {
    PyThreadState* const held = PyEval_SaveThread();
    session_.reset();
    PyEval_RestoreThread(held);
  }
  Session& get() const {
    if (!session_) throw py::value_error("gradpress: this was closed; attach the model again");
    return *session_;
  }

 private:
  std::unique_ptr<Session> session_;
};

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000.0));
}

struct Settings {
  C10dOptions group = {};
  EngineOptions engine = {};
};

/// How a setting that Python gives by name becomes ours.
template <class T>
std::function<void(const py::handle&)> into(T& place) {
  return [&place](const py::handle& value) { place = value.cast<T>(); };
}
std::function<void(const py::handle&)> into(std::chrono::milliseconds& place) {
  return [&place](const py::handle& value) { place = milliseconds(value.cast<double>()); };
}

Settings read_settings(const py::dict& given) {
  Settings settings;
  EngineOptions& engine = settings.engine;
  const std::map<std::string, std::function<void(const py::handle&)>> readers{
      {"address", into(settings.group.address)},
      {"local_size", into(settings.group.local_size)},
      {"timeout_s", into(settings.group.timeout)},
      {"start_timeout_s", into(settings.group.start_timeout)},
      {"codec", into(engine.codec)},
      {"rules",
       [&](const py::handle& value) {
         for (const auto& [pattern, codec] :
              value.cast<std::vector<std::pair<std::string, std::string>>>()) {
           engine.rules.push_back({.pattern = pattern, .codec = codec});
         }
       }},
      {"auto_codecs", into(engine.automatic.codecs)},
      {"auto_raw_steps", into(engine.automatic.raw_steps)},
      {"auto_window", into(engine.automatic.window)},
      {"auto_cache", into(engine.automatic.cache)},
      {"feedback", [&](const py::handle& value) { engine.feedback = value.cast<bool>(); }},
      {"pipelining", into(engine.pipelining)},
      {"fusion", into(engine.fusion)},
      {"sum_payloads", into(engine.sum_payloads)},
      {"least_elements", into(engine.least_elements)},
      {"bucket_bytes", into(engine.bucket_bytes)},
      {"raw_bucket_bytes", into(engine.raw_bucket_bytes)},
      {"strict", into(engine.strict)},
      {"seed", into(engine.seed)}};
  for (const auto& [key, value] : given) {
    const auto name = key.cast<std::string>();
    const auto reader = readers.find(name);
    if (reader == readers.end()) {
      std::string known;
      for (const auto& [one, ignored] : readers)
        known.append(known.empty() ? "" : ", ").append(one);
      throw py::value_error(
          std::string("gradpress: there is no setting \"").append(name).append("\", only ") +
          known);
    }
    reader->second(value);
  }
  return settings;
}

std::vector<Parameter> parameters_of(const std::vector<std::string>& names,
                                     const std::vector<at::Tensor>& tensors) {
  if (names.size() != tensors.size()) throw py::value_error("gradpress: a name per parameter");
  std::vector<Parameter> parameters;
  for (std::size_t i = 0; i < names.size(); ++i) {
    parameters.push_back({.name = names[i], .tensor = tensors[i]});
  }
  return parameters;
}

std::unique_ptr<Handle> make_session(ProcessGroup group, const std::vector<std::string>& names,
                                     const std::vector<at::Tensor>& tensors,
                                     const py::dict& given) {
  Settings settings = read_settings(given);
  settings.group.process_group = std::move(group);
  const std::vector<Parameter> parameters = parameters_of(names, tensors);
  const py::gil_scoped_release unlocked;
  return std::make_unique<Handle>(
      value_of(Session::make(settings.group, parameters, std::move(settings.engine))));
}

std::unique_ptr<DeviceSession> make_device_session(ProcessGroup group,
                                                   const std::vector<std::string>& names,
                                                   const std::vector<at::Tensor>& tensors,
                                                   const py::dict& given) {
  const Settings settings = read_settings(given);
  return value_of(
      DeviceSession::make(std::move(group), parameters_of(names, tensors), settings.engine));
}

PyFuture push_to_device(DeviceSession& session, c10d::GradBucket& bucket) {
  const c10::IValue value = as_object(bucket.getBuffer());
  const py::gil_scoped_release unlocked;
  return wrapped(value_of(session.push(bucket, value)));
}

py::dict last_device_step(const DeviceSession& session) {
  py::dict out;
  out["payload_bytes"] = session.payload_bytes();
  return out;
}

py::bytes as_python(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

PyFuture push_bucket(const Handle& handle, const c10d::GradBucket& bucket) {
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::PyObjectType::get());
  check(handle.get().push(bucket, completing(future, as_object(bucket.getBuffer()))));
  return wrapped(std::move(future));
}

PyFuture push_gradients(const Handle& handle, const std::vector<std::size_t>& indices,
                        const std::vector<at::Tensor>& gradients, bool last) {
  if (indices.size() != gradients.size()) {
    throw py::value_error("gradpress: a gradient per index");
  }
  std::vector<Slice> slices;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] >= handle.get().tensors()) {
      throw py::value_error("gradpress: there is no parameter " + std::to_string(indices[i]));
    }
    slices.push_back({.tensor = indices[i], .gradient = gradients[i]});
  }
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::PyObjectType::get());
  handle.get().push(std::move(slices), last,
                    completing(future, c10::ivalue::ConcretePyObjectHolder::create(py::none())));
  return wrapped(std::move(future));
}

py::object last_step(const Handle& handle) {
  const auto step = handle.get().last_step();
  if (!step) return py::none();
  py::dict out;
  out["step"] = step->step;
  out["finite"] = step->finite;
  out["sent_bytes"] = step->sent.intra + step->sent.inter;
  out["promised_bytes"] = step->promised.intra + step->promised.inter;
  out["exposed_us"] = step->exposed_us;
  out["unused"] = step->unused;
  out["rests"] = step->rests;
  return out;
}

py::bytes checkpoint(const Handle& handle) {
  const auto bytes = [&] {
    const py::gil_scoped_release unlocked;
    return value_of(handle.get().checkpoint());
  }();
  return as_python(bytes);
}

void restore(const Handle& handle, const std::string& bytes) {
  const py::gil_scoped_release unlocked;
  check(handle.get().restore(std::as_bytes(std::span(bytes))));
}

PyFuture all_reduce(const ProcessGroup& group, c10d::GradBucket& bucket, bool divide) {
  const c10::IValue value = as_object(bucket.getBuffer());
  const py::gil_scoped_release unlocked;
  return wrapped(
      raw_all_reduce(*group, bucket, divide ? Scaling::kDivide : Scaling::kMultiply, value));
}

PyFuture finished(const c10d::GradBucket& bucket) {
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::PyObjectType::get());
  future->markCompleted(as_object(bucket.getBuffer()));
  return wrapped(std::move(future));
}

/// With the methods of a Session, so that Python need not tell them apart.
void bind_device_session(py::module_& module) {
  py::class_<DeviceSession>(module, "DeviceSession")
      .def(py::init(&make_device_session), py::arg("process_group"), py::arg("names"),
           py::arg("parameters"), py::arg("settings"))
      .def_static("can", &DeviceSession::can, py::arg("codec"))
      .def("push_bucket", &push_to_device, py::arg("bucket"))
      .def("last_step", &last_device_step)
      .def("take_log", [](const DeviceSession&) { return std::vector<std::string>(); })
      .def("close", [](const DeviceSession&) {})
      .def(
          "set_codec",
          [](DeviceSession& session, const std::string& codec) { check(session.set_codec(codec)); },
          py::arg("codec"))
      .def(
          "set_other_raw_us", [](const DeviceSession&, double) {}, py::arg("us"))
      .def("scale_residuals", &DeviceSession::scale_residuals, py::arg("factor"))
      .def(
          "residual",
          [](const DeviceSession& session, std::size_t tensor) {
            return value_of(session.residual(tensor));
          },
          py::arg("parameter"))
      .def(
          "add_residual",
          [](DeviceSession& session, std::size_t tensor, const at::Tensor& residual) {
            check(session.add_residual(tensor, residual));
          },
          py::arg("parameter"), py::arg("residual"))
      .def("summary", &DeviceSession::summary)
      .def("running", &DeviceSession::running)
      .def("checkpoint",
           [](const DeviceSession& session) { return as_python(session.checkpoint()); })
      .def(
          "restore",
          [](DeviceSession& session, const std::string& bytes) {
            check(session.restore(std::as_bytes(std::span(bytes))));
          },
          py::arg("checkpoint"));
}

}  // namespace

PYBIND11_MODULE(_core, module) {
  // GradBucket, ProcessGroup and Future are types of torch's own module.
  py::module_::import("torch.distributed");
  module.doc() = "gradpress in C++: sessions, and DDP's own all-reduce as a hook.";
  py::register_exception<PeerLost>(module, "PeerLost", PyExc_RuntimeError);
  using Unlocked = py::call_guard<py::gil_scoped_release>;
  py::class_<Handle>(module, "Session")
      .def(py::init(&make_session), py::arg("process_group"), py::arg("names"),
           py::arg("parameters"), py::arg("settings"))
      .def("push_bucket", &push_bucket, py::arg("bucket"))
      .def("push_gradients", &push_gradients, py::arg("indices"), py::arg("gradients"),
           py::arg("last"))
      .def("last_step", &last_step)
      .def("take_log", [](const Handle& handle) { return handle.get().take_log(); })
      .def("close", &Handle::close)
      .def(
          "set_codec",
          [](const Handle& handle, const std::string& codec) {
            check(handle.get().set_codec(codec));
          },
          py::arg("codec"), Unlocked())
      .def(
          "set_other_raw_us",
          [](const Handle& handle, double us) { handle.get().set_other_raw_us(us); }, py::arg("us"))
      .def(
          "scale_residuals",
          [](const Handle& handle, float factor) { check(handle.get().scale_residuals(factor)); },
          py::arg("factor"), Unlocked())
      .def(
          "residual",
          [](const Handle& handle, std::size_t tensor) {
            return value_of(handle.get().residual(tensor));
          },
          py::arg("parameter"), Unlocked())
      .def(
          "add_residual",
          [](const Handle& handle, std::size_t tensor, const at::Tensor& residual) {
            check(handle.get().add_residual(tensor, residual));
          },
          py::arg("parameter"), py::arg("residual"), Unlocked())
      .def(
          "summary", [](const Handle& handle) { return value_of(handle.get().summary()); },
          Unlocked())
      .def(
          "running", [](const Handle& handle) { return value_of(handle.get().running()); },
          Unlocked())
      .def("checkpoint", &checkpoint)
      .def("restore", &restore, py::arg("checkpoint"));
  bind_device_session(module);
  module.def("all_reduce", &all_reduce, py::arg("process_group"), py::arg("bucket"),
             py::arg("divide"), "What DDP does without a hook, bit for bit.");
  module.def("finished", &finished, py::arg("bucket"), "The bucket as it is, at once.");
}

}  // namespace gradpress::plugin
