// What a kernel's name tells: which kinds of operation it can belong to, and as what.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pipewright::traces {

/// `main` does an operation's work; `before` and `after` are its helpers (a memset of semaphores, a finalize kernel).
enum class Role { main, before, after, other };

struct Meaning {
  Role role = Role::other;
  std::vector<std::string> operations;   ///< families without their variants: see operation_of
  std::vector<std::string> joined = {};  ///< what the model runs after it, in order, and this kernel does, too
};

Meaning meaning_of(std::string_view kernel_name);

/// The part of a profile family that a kernel's name can tell: "gemm.bf16.nt.acc_f32" -> "gemm.bf16.nt",
/// "attention.forward.bf16" -> "attention.forward", "all_gather.nvlink" -> "all_gather".
std::string operation_of(const std::string& family);

/// An operation that is told by its name alone, so that a layer's pattern can hang on it.
bool is_landmark(const std::string& operation);

/// The same on the communication stream of expert-parallel overlap.
bool is_beside_landmark(const std::string& operation);

/// What an eager operator is whose time the model has from one that moves as many bytes: any kernel of ATen's.
inline constexpr const char* eager_operation = "eager";
bool is_stand_in(const std::string& operation);
bool is_eager(std::string_view kernel_name);

/// Whether ATen runs it element by element, by its TensorIterator; multi-tensor kernels and compiled ones are not.
bool is_of_tensor_iterator(std::string_view kernel_name);

/// Kernels into which ATen's TensorIterator cuts an operation of `elements`; 0: it is not known to be one.
std::int64_t pieces_of(const std::string& operation, std::int64_t elements);

/// Its kernels and another operation's are launched in turn, so that no interval between launches is its own: a gated
/// delta rule's among its states', those of Mamba-2's scan.
bool is_launched_among_others(const std::string& operation);
/// An operation made of many kernels in a row (sort and sums of an embedding's gradient, a loss, an optimizer).
bool is_run(const std::string& operation);

}  // namespace pipewright::traces
