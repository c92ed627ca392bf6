// Setting up a memory-bound op: its operands out of the lab's memory, and what its predecessor leaves in the L2 cache.
#pragma once

#include <functional>
#include <vector>

#include "ops.hpp"

namespace pipewright::capture {

using Dims = std::vector<std::int64_t>;
using Launch = std::function<void(int)>;

/// Takes operands and notes when the part is too small; the launch is dropped then.
class Setup {
 public:
  explicit Setup(Lab& in) : lab(in) {}
  Operand take(Content content, std::int64_t elements, bool written = false) {
    const auto operand = lab.take(content, elements, written);
    if (!operand) fits_ = false;
    return operand.value_or(Operand{});
  }
  Operand bf16(std::int64_t elements) { return take(Content::bf16, elements); }
  Operand f32(std::int64_t elements) { return take(Content::f32, elements, true); }
  Operand out(std::int64_t bytes) { return take(Content::scratch, bytes); }
  /// Shapes that the kernel is not made for are left out.
  void needs(bool condition) { fits_ = fits_ && condition; }
  bool fits() const { return fits_; }
  kernels::Stream stream() const { return lab.stream; }

  Lab& lab;
  /// The op finds this operand in the L2 cache, as far as it fits: the kernel before has just written it.
  void just_written(const Operand& operand, std::int64_t elements) {
    const auto source = bf16(elements);
    before = [=, stream = stream()](int i) {
      check(cudaMemcpyAsync(operand.at(i), source.at(i), static_cast<std::size_t>(elements * 2),
                            cudaMemcpyDeviceToDevice, stream),
            "copy");
    };
  }
  Launch before;

 private:
  bool fits_ = true;
};

using Factory = std::function<Launch(Setup&, const Dims&)>;

/// nullopt: the part's memory is too small, or no kernel is made for it.
inline std::optional<Op> set_up(Lab& lab, const Factory& factory, const Dims& dims) {
  Setup setup(lab);
  Op op;
  op.launch = factory(setup, dims);
  if (!setup.fits()) return std::nullopt;
  op.before = setup.before;
  op.pause = 0.6;
  return op;
}

}  // namespace pipewright::capture
