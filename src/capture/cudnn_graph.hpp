// A small builder over cuDNN's backend API: tensors, the operations that attention is made of, a plan to execute.
#pragma once

#include <cudnn.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <vector>

namespace pipewright::capture {

void check(cudnnStatus_t status, const char* what);

class CudnnGraph {
 public:
  using Descriptor = std::shared_ptr<void>;  // a cudnnBackendDescriptor_t that destroys itself
  using Dims = std::vector<std::int64_t>;

  struct Tensor {
    Descriptor descriptor;
    Dims dims, strides;
    std::int64_t id = 0;
  };

  explicit CudnnGraph(cudnnHandle_t handle) : handle_(handle) {}

  /// A tensor in memory, bound at execution. `by_value`: a scalar in host memory.
  Tensor tensor(cudnnDataType_t type, Dims dims, Dims strides, bool by_value = false);
  /// An intermediate that never reaches memory (unless cuDNN chooses so); packed.
  Tensor intermediate(cudnnDataType_t type, Dims dims);
  Tensor intermediate(cudnnDataType_t type, Dims dims, Dims strides);

  void matmul(const Tensor& a, const Tensor& b, const Tensor& c);
  void pointwise(cudnnPointwiseMode_t mode, const Tensor& x, const Tensor& y);
  void pointwise(cudnnPointwiseMode_t mode, const Tensor& x, const Tensor& b, const Tensor& y);
  void compare(cudnnPointwiseMode_t mode, const Tensor& x, const Tensor& b, const Tensor& y);
  void index(const Tensor& x, std::int64_t axis, const Tensor& y);
  /// y = mask ? x : b
  void select(const Tensor& x, const Tensor& b, const Tensor& mask, const Tensor& y);
  void reduce(cudnnReduceTensorOp_t operation, const Tensor& x, const Tensor& y);
  void reshape(const Tensor& x, const Tensor& y);
  /// y = 1 with `probability`, else 0; counter-based, from a seed and an offset in memory (int64).
  void bernoulli(const Tensor& seed, const Tensor& offset, double probability, const Tensor& y);

  /// Chooses the heuristic's first engine that accepts the graph. False: none does.
  bool build();
  std::int64_t workspace_bytes() const { return workspace_bytes_; }
  void execute(const std::vector<std::pair<std::int64_t, void*>>& data, void* workspace) const;

 private:
  Descriptor make(cudnnBackendDescriptorType_t type) const;
  /// Finalises an operation; it and what it is made `of` live as long as the graph.
  void add(const Descriptor& operation, const char* what, std::initializer_list<Descriptor> of);
  Descriptor pointwise_kind(cudnnPointwiseMode_t mode, cudnnDataType_t precision, std::int64_t axis) const;
  void add_pointwise(const Descriptor& kind, const Tensor& x, const Tensor* b, const Tensor* mask, const Tensor& y);
  Tensor make_tensor(cudnnDataType_t type, Dims dims, Dims strides, bool is_virtual, bool by_value);

  cudnnHandle_t handle_;
  std::vector<Descriptor> keep_;
  std::vector<cudnnBackendDescriptor_t> operations_;
  Descriptor plan_;
  std::int64_t workspace_bytes_ = 0;
  std::int64_t next_id_ = 1;
};

}  // namespace pipewright::capture
