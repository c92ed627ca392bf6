#include "cudnn_graph.hpp"

#include <stdexcept>
#include <utility>

namespace pipewright::capture {

void check(cudnnStatus_t status, const char* what) {
  if (status != CUDNN_STATUS_SUCCESS) {
    throw std::runtime_error(std::string("cuDNN: ") + what + ": " + cudnnGetErrorString(status));
  }
}

namespace {

template <class T>
void set(const CudnnGraph::Descriptor& d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
         std::int64_t count, const T* values) {
  check(cudnnBackendSetAttribute(d.get(), name, type, count, values), "attribute");
}

void set(const CudnnGraph::Descriptor& d, cudnnBackendAttributeName_t name, const CudnnGraph::Descriptor& value) {
  cudnnBackendDescriptor_t raw = value.get();
  set(d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &raw);
}

void finalize(const CudnnGraph::Descriptor& d, const char* what) { check(cudnnBackendFinalize(d.get()), what); }

CudnnGraph::Dims packed(const CudnnGraph::Dims& dims) {
  CudnnGraph::Dims strides(dims.size(), 1);
  for (std::size_t i = dims.size() - 1; i > 0; --i) strides[i - 1] = strides[i] * dims[i];
  return strides;
}

}  // namespace

CudnnGraph::Descriptor CudnnGraph::make(cudnnBackendDescriptorType_t type) const {
  cudnnBackendDescriptor_t raw = nullptr;
  check(cudnnBackendCreateDescriptor(type, &raw), "descriptor");
  return {raw, [](void* d) { cudnnBackendDestroyDescriptor(d); }};
}

CudnnGraph::Tensor CudnnGraph::make_tensor(cudnnDataType_t type, Dims dims, Dims strides, bool is_virtual,
                                           bool by_value) {
  Tensor t{make(CUDNN_BACKEND_TENSOR_DESCRIPTOR), std::move(dims), std::move(strides), next_id_++};
  const auto rank = static_cast<std::int64_t>(t.dims.size());
  const std::int64_t alignment = 16;
  set(t.descriptor, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
  set(t.descriptor, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, rank, t.dims.data());
  set(t.descriptor, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, rank, t.strides.data());
  set(t.descriptor, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &t.id);
  set(t.descriptor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
  set(t.descriptor, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
  set(t.descriptor, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
  finalize(t.descriptor, "tensor");
  return t;
}

CudnnGraph::Tensor CudnnGraph::tensor(cudnnDataType_t type, Dims dims, Dims strides, bool by_value) {
  return make_tensor(type, std::move(dims), std::move(strides), false, by_value);
}

CudnnGraph::Tensor CudnnGraph::intermediate(cudnnDataType_t type, Dims dims) {
  Dims strides = packed(dims);
  return make_tensor(type, std::move(dims), std::move(strides), true, false);
}

CudnnGraph::Tensor CudnnGraph::intermediate(cudnnDataType_t type, Dims dims, Dims strides) {
  return make_tensor(type, std::move(dims), std::move(strides), true, false);
}

void CudnnGraph::add(const Descriptor& operation, const char* what, std::initializer_list<Descriptor> of) {
  finalize(operation, what);
  keep_.insert(keep_.end(), of);
  keep_.push_back(operation);
  operations_.push_back(operation.get());
}

void CudnnGraph::matmul(const Tensor& a, const Tensor& b, const Tensor& c) {
  const cudnnDataType_t precision = CUDNN_DATA_FLOAT;
  const auto kind = make(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  set(kind, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &precision);
  finalize(kind, "matmul");
  const auto operation = make(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  set(operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a.descriptor);
  set(operation, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b.descriptor);
  set(operation, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c.descriptor);
  set(operation, CUDNN_ATTR_OPERATION_MATMUL_DESC, kind);
  add(operation, "matmul operation", {a.descriptor, b.descriptor, c.descriptor, kind});
}

CudnnGraph::Descriptor CudnnGraph::pointwise_kind(cudnnPointwiseMode_t mode, cudnnDataType_t precision,
                                                  std::int64_t axis) const {
  const auto kind = make(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  set(kind, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
  set(kind, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &precision);
  if (axis >= 0) set(kind, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
  finalize(kind, "pointwise");
  return kind;
}

void CudnnGraph::add_pointwise(const Descriptor& kind, const Tensor& x, const Tensor* b, const Tensor* mask,
                               const Tensor& y) {
  const auto operation = make(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  set(operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, kind);
  set(operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x.descriptor);
  if (b != nullptr) set(operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b->descriptor);
  if (mask != nullptr) set(operation, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, mask->descriptor);
  set(operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y.descriptor);
  add(operation, "pointwise operation", {kind, x.descriptor, y.descriptor});
  if (b != nullptr) keep_.push_back(b->descriptor);
  if (mask != nullptr) keep_.push_back(mask->descriptor);
}

void CudnnGraph::pointwise(cudnnPointwiseMode_t mode, const Tensor& x, const Tensor& y) {
  add_pointwise(pointwise_kind(mode, CUDNN_DATA_FLOAT, -1), x, nullptr, nullptr, y);
}

void CudnnGraph::pointwise(cudnnPointwiseMode_t mode, const Tensor& x, const Tensor& b, const Tensor& y) {
  add_pointwise(pointwise_kind(mode, CUDNN_DATA_FLOAT, -1), x, &b, nullptr, y);
}

void CudnnGraph::compare(cudnnPointwiseMode_t mode, const Tensor& x, const Tensor& b, const Tensor& y) {
  add_pointwise(pointwise_kind(mode, CUDNN_DATA_BOOLEAN, -1), x, &b, nullptr, y);
}

void CudnnGraph::index(const Tensor& x, std::int64_t axis, const Tensor& y) {
  add_pointwise(pointwise_kind(CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, axis), x, nullptr, nullptr, y);
}

void CudnnGraph::select(const Tensor& x, const Tensor& b, const Tensor& mask, const Tensor& y) {
  add_pointwise(pointwise_kind(CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, -1), x, &b, &mask, y);
}

void CudnnGraph::reduce(cudnnReduceTensorOp_t reduction, const Tensor& x, const Tensor& y) {
  const cudnnDataType_t precision = CUDNN_DATA_FLOAT;
  const auto kind = make(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  set(kind, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &reduction);
  set(kind, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &precision);
  finalize(kind, "reduction");
  const auto operation = make(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  set(operation, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x.descriptor);
  set(operation, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y.descriptor);
  set(operation, CUDNN_ATTR_OPERATION_REDUCTION_DESC, kind);
  add(operation, "reduction operation", {kind, x.descriptor, y.descriptor});
}

void CudnnGraph::reshape(const Tensor& x, const Tensor& y) {
  const auto operation = make(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  set(operation, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x.descriptor);
  set(operation, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y.descriptor);
  add(operation, "reshape operation", {x.descriptor, y.descriptor});
}

void CudnnGraph::bernoulli(const Tensor& seed, const Tensor& offset, double probability, const Tensor& y) {
  const cudnnRngDistribution_t distribution = CUDNN_RNG_DISTRIBUTION_BERNOULLI;
  const auto kind = make(CUDNN_BACKEND_RNG_DESCRIPTOR);
  set(kind, CUDNN_ATTR_RNG_DISTRIBUTION, CUDNN_TYPE_RNG_DISTRIBUTION, 1, &distribution);
  set(kind, CUDNN_ATTR_RNG_BERNOULLI_DIST_PROBABILITY, CUDNN_TYPE_DOUBLE, 1, &probability);
  finalize(kind, "random numbers");
  const auto operation = make(CUDNN_BACKEND_OPERATION_RNG_DESCRIPTOR);
  set(operation, CUDNN_ATTR_OPERATION_RNG_YDESC, y.descriptor);
  set(operation, CUDNN_ATTR_OPERATION_RNG_DESC, kind);
  set(operation, CUDNN_ATTR_OPERATION_RNG_SEED, seed.descriptor);
  set(operation, CUDNN_ATTR_OPERATION_RNG_OFFSET_DESC, offset.descriptor);
  add(operation, "random numbers operation", {kind, seed.descriptor, offset.descriptor, y.descriptor});
}

bool CudnnGraph::build() {
  const auto graph = make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  set(graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle_);
  set(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
      static_cast<std::int64_t>(operations_.size()), operations_.data());
  finalize(graph, "operation graph");
  keep_.push_back(graph);

  const auto heuristic = make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
  set(heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  set(heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
  if (cudnnBackendFinalize(heuristic.get()) != CUDNN_STATUS_SUCCESS) return false;
  std::int64_t count = 0;
  check(cudnnBackendGetAttribute(heuristic.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0,
                                 &count, nullptr),
        "number of engines");
  std::vector<Descriptor> configurations;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (std::int64_t i = 0; i < count; ++i) {
    configurations.push_back(make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
    raw.push_back(configurations.back().get());
  }
  std::int64_t found = 0;
  check(cudnnBackendGetAttribute(heuristic.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count,
                                 &found, raw.data()),
        "engines");
  for (std::int64_t i = 0; i < found; ++i) {
    const auto plan = make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    set(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle_);
    set(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configurations[static_cast<std::size_t>(i)]);
    if (cudnnBackendFinalize(plan.get()) != CUDNN_STATUS_SUCCESS) continue;
    check(cudnnBackendGetAttribute(plan.get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, nullptr,
                                   &workspace_bytes_),
          "workspace size");
    keep_.push_back(configurations[static_cast<std::size_t>(i)]);
    plan_ = plan;
    return true;
  }
  return false;
}

void CudnnGraph::execute(const std::vector<std::pair<std::int64_t, void*>>& data, void* workspace) const {
  std::vector<std::int64_t> ids;
  std::vector<void*> pointers;
  for (const auto& [id, pointer] : data) {
    ids.push_back(id);
    pointers.push_back(pointer);
  }
  const auto pack = make(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  const auto n = static_cast<std::int64_t>(ids.size());
  set(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, ids.data());
  set(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, pointers.data());
  set(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
  finalize(pack, "variant pack");
  check(cudnnBackendExecute(handle_, plan_.get(), pack.get()), "execution");
}

}  // namespace pipewright::capture
