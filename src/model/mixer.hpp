// What linear attention and state-space mixers have around their own kernels: a norm with in_proj before them, out_proj
// behind.
#pragma once

#include <string>
#include <utility>

#include "attention.hpp"
#include "linear.hpp"

namespace pipewright::model {

class Mixer : public Attention {
 public:
  void weight_gradients() override { linear_.weight_gradients.run(); }

 protected:
  /// `module`: Megatron's name of the mixer within a layer. `projected`, `inner`: in_proj's output and out_proj's
  /// input.
  Mixer(PieceBuilder& builder, const Dimensions& dimensions, const LayerKind& kind, const std::string& name,
        const std::string& module, Int projected, Int inner)
      : w_(builder),
        d_(dimensions),
        linear_(builder, dimensions),
        begins_in_out_(kind.ends && dimensions.lora.in_proj == 0),
        in_(column_parallel(d_, kind.precision, name + ".in_proj", module + ".in_proj", d_.h, projected,
                            d_.lora.in_proj, kind.ends)),
        out_(row_parallel(d_, kind.precision, name + ".out_proj", module + ".out_proj", inner, d_.h, d_.lora.out_proj,
                          begins_in_out_)),
        output_(name + ".output") {}

  /// out_proj with its adapter; returns the output. `input` goes unless backward needs it; `replayed`: it is made anew.
  std::uint32_t project_out(std::uint32_t& input, bool needed, bool replayed = false) {
    auto out = linear_.row_linear(out_, output_, out_input_, needed && !begins_in_out_, false);
    out = linear_.adapt(out_, out, output_, no_tensor, out_adapted_, needed);
    if (!needed || replayed || ((out_.fp8() || out_.frozen) && out_.rank == 0)) w_.release(input);
    return out;
  }
  /// Returns the gradient of out_proj's input, none where nothing before it trains. Frees both.
  std::uint32_t project_out_backward(std::uint32_t& input, std::uint32_t dropped) {
    const auto through_adapter = linear_.adapt_backward(out_, out_adapted_);
    std::uint32_t gradient = no_tensor;
    if (!begins_in_out_) {
      gradient = linear_.row_backward(out_, out_input_, false);
      linear_.add_through(out_, through_adapter);
    }
    w_.free(dropped);
    w_.release(input);
    return gradient;
  }

  PieceBuilder& w_;
  const Dimensions& d_;
  LinearWriter linear_;
  const bool begins_in_out_;  ///< of a frozen model: nothing before that adapter needs a gradient
  Linear in_, out_;
  Normed norm_;

 private:
  const std::string output_;
  Operand out_input_;
  Adapted out_adapted_;
};

}  // namespace pipewright::model
