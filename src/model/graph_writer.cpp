#include "graph_writer.hpp"

#include <algorithm>
#include <utility>

namespace pipewright::model {

std::uint32_t GraphWriter::static_buffer(const std::string& owner, Int bytes) {
  w_.home(Tensor::Home::static_buffer);
  const auto buffer = w_.allocate(owner, bytes);
  w_.home(Tensor::Home::allocator);
  return buffer;
}

void GraphWriter::copied(const char* name, Int bytes, const char* host_family) {
  Kernel kernel;
  kernel.name = name;
  kernel.key = {"copy.d2d", {bytes}};
  kernel.host_family = host_family;
  w_.launch(std::move(kernel));
}

/// What the host does for a graph: a call of an autograd function with all parameters, one launch. The GPU is taken to
/// begin it as it begins a small kernel.
void GraphWriter::replay(const std::string& direction, const char* host_family) {
  Kernel kernel;
  kernel.name = "CUDA graph " + direction;
  kernel.key = {"small", {}};
  kernel.host_family = host_family;
  w_.launch(std::move(kernel));
  w_.home(Tensor::Home::graph_pool);
}

std::uint32_t GraphWriter::zeros() {
  const auto zeros = w_.allocate("CUDA graph attention mask", mask_bytes());
  w_.launch("CUDA graph attention mask", {"copy.d2d", {mask_bytes() / 2}});  // written, not read
  return zeros;
}

std::uint32_t GraphWriter::enter_own(bool attends) {
  auto input = no_tensor;
  if (!given_input_) {
    input = static_buffer("CUDA graph inputs", d_.boundary_bytes());
    w_.launch("CUDA graph input", {"copy.d2d", {d_.boundary_bytes()}});
    if (attends) copy_rotary_table();
  }
  replay("forward");
  return input;
}

void GraphWriter::copy_rotary_table() {
  if (d_.rope && !d_.mla) w_.launch("CUDA graph rotary table", {"copy.d2d", {4 * d_.s * d_.head_dim}});
}

std::uint32_t GraphWriter::enter(bool masked) {
  if (d_.graphs.own) return enter_own(false);
  const auto input = static_buffer("CUDA graph inputs", d_.boundary_bytes());
  const auto mask = masked ? zeros() : no_tensor;
  w_.launch("CUDA graph input", {"copy.d2d", {d_.boundary_bytes()}});
  w_.free(mask);
  replay("forward");
  return input;
}

std::uint32_t GraphWriter::enter_attention() {
  if (d_.graphs.own) return enter_own(true);
  const auto input = static_buffer("CUDA graph inputs of attention", d_.boundary_bytes());
  kept_.push_back(static_buffer("CUDA graph attention masks", mask_bytes()));
  const auto mask = zeros();
  w_.launch("CUDA graph input", {"copy.d2d", {d_.boundary_bytes()}});
  w_.launch("CUDA graph mask", {"copy.d2d", {mask_bytes()}});
  copy_rotary_table();
  w_.free(mask);
  replay("forward");
  return input;
}

void GraphWriter::put_out(std::initializer_list<std::uint32_t*> outputs) {
  for (auto* output : outputs) {
    if (*output == no_tensor) continue;
    kept_.push_back(*output);
    *output = w_.view(*output);
  }
}

std::uint32_t GraphWriter::output() { return w_.tensor("CUDA graph outputs", d_.boundary_bytes()); }

void GraphWriter::leave_with(std::uint32_t output, std::uint32_t y) {
  kept_.push_back(output);
  leave();
  w_.allocate(y);
}

std::uint32_t GraphWriter::copy(std::uint32_t gradient, Int bytes) {
  given_.push_back(gradient);
  if (given_gradient_) return gradient;
  given_.push_back(static_buffer("CUDA graph output gradients", bytes));
  copied("CUDA graph output gradient", bytes, "graph_input");
  return given_.back();
}

void GraphWriter::enter_backward() { replay("backward"); }

void GraphWriter::mlp_done() {
  of_mlp_ = w_.take_returned();
  std::reverse(of_mlp_.begin(), of_mlp_.end());
}

std::uint32_t GraphWriter::input_gradient(bool is_output) {
  const auto gradient = w_.tensor("CUDA graph input gradient", d_.boundary_bytes(), Tensor::Home::graph_gradient);
  if (is_output) leaves_as_output(w_, gradient);
  return gradient;
}

void GraphWriter::leaves_as_output(PieceBuilder& builder, std::uint32_t gradient) {
  builder.piece().tensors[gradient].stream = Stream::gradient;
}

void GraphWriter::leave_backward() {
  leave();
  auto returned = w_.take_returned();
  returned.insert(returned.end(), of_mlp_.begin(), of_mlp_.end());
  of_mlp_.clear();
  std::vector<std::uint32_t> clones;
  if (d_.graphs.clones_gradients) {
    for (const auto& each : returned) {
      clones.push_back(w_.allocate_gradient(each.bytes));
      copied("CUDA graph weight gradient", each.bytes, "graph_clone");
    }
  }
  for (const auto& each : returned)
    if (!each.accumulation.name.empty()) w_.launch(each.accumulation);
  for (auto* list : {&clones, &given_, &kept_}) {
    for (const auto tensor : *list) w_.free(tensor);
    list->clear();
  }
}

}  // namespace pipewright::model
