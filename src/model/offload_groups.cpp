// Activation offload of a layer: which saved tensors move, and where Megatron or Transformer Engine hooks in.
//
//   fine-grained   forward:  begin .. the module .. commit (D2H)        backward:  needed (waits) .. module .. done
//   (H2D) whole layer    forward:  begin ........... layer ...........        backward:  done (H2D), needed .. layer
#include "offload_groups.hpp"

#include <algorithm>

namespace pipewright::model {
namespace {

/// TE pytorch/cpu_offload.py, OffloadableLayerState._check_if_offload: smaller tensors stay (elements).
constexpr Int smallest_of_whole_layer = 256 * 1024;

Int elements(const Tensor& tensor) { return tensor.bytes.value / tensor.element_bytes; }

std::uint32_t add_copy(Piece& piece, Stream stream, const std::string& name, Bytes bytes) {
  Kernel kernel;
  kernel.name = name;
  kernel.key = {stream == Stream::d2h ? "copy.d2h" : "copy.h2d", {bytes.value}};
  kernel.stream = stream;
  kernel.purpose = Purpose::offload;
  piece.kernels.push_back(std::move(kernel));
  return static_cast<std::uint32_t>(piece.kernels.size() - 1);
}

OffloadGroup::Move& add_move(Piece& piece, std::uint32_t group, std::uint32_t tensor, std::uint32_t back,
                             bool releases) {
  const Bytes bytes = piece.tensors[tensor].bytes;
  const auto out = add_copy(piece, Stream::d2h, piece.groups[group].name + " offload", bytes);
  const auto in = add_copy(piece, Stream::h2d, piece.groups[group].name + " reload", bytes);
  return piece.groups[group].moves.emplace_back(
      OffloadGroup::Move{tensor, back, out, in, releases, OffloadGroup::none, {}});
}

std::uint32_t add_group(Piece& piece, const std::string& name) {
  piece.groups.push_back({name, {}, {}});
  return static_cast<std::uint32_t>(piece.groups.size() - 1);
}

/// Tensors that forward allocates and leaves, in order, with the kernel after which each is there.
std::vector<std::pair<std::uint32_t, std::uint32_t>> saved_by(const Piece& layer) {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> saved{{Piece::input, OffloadGroup::none}};
  for (const auto& step : layer.forward) {
    if (step.kind == Step::Kind::allocate && step.index != Piece::output) {
      saved.emplace_back(step.index, OffloadGroup::none);
    } else if (step.kind == Step::Kind::free) {
      std::erase_if(saved, [&](const auto& one) { return one.first == step.index; });
    } else if (step.kind == Step::Kind::launch) {
      for (auto& [tensor, after] : saved)
        if (tensor != Piece::input && after == OffloadGroup::none) after = step.index;
    }
  }
  return saved;
}

}  // namespace

void OffloadWriter::begin(Offload module, bool grad) {
  groups_.erase(module);
  if (!grad || w_.recomputes() || !d_.offloads(module)) return;
  groups_[module] = add_group(w_.piece(), std::string(scenario::name(module)));
  hook(module, Step::Kind::offload_begin);
}

bool OffloadWriter::moves(Offload module, std::uint32_t tensor) const {
  return groups_.contains(module) && elements(w_.piece().tensors[tensor]) >= d_.smallest_offload;
}

void OffloadWriter::save(Offload module, std::uint32_t tensor, std::uint32_t back, bool releases) {
  if (moves(module, tensor)) add_move(w_.piece(), groups_.at(module), tensor, back, releases);
}

void OffloadWriter::saves(Offload module, const std::vector<std::uint32_t>& tensors) {
  for (const auto tensor : tensors)
    if (tensor != no_tensor) save(module, tensor, tensor, true);
}

std::uint32_t OffloadWriter::saves_held(Offload module, std::uint32_t tensor) {
  if (tensor == no_tensor || !moves(module, tensor)) return no_tensor;
  const Tensor held = w_.piece().tensors[tensor];
  w_.piece().tensors.push_back(held);
  const auto back = static_cast<std::uint32_t>(w_.piece().tensors.size() - 1);
  save(module, tensor, back, false);
  return back;
}

void OffloadWriter::hook(Offload module, Step::Kind kind) {
  if (const auto group = groups_.find(module); group != groups_.end()) w_.hook(kind, group->second);
}

void StashWriter::begin(bool grad) {
  group_ = OffloadGroup::none;
  if (!grad || !d_.moe.stashes) return;
  group_ = add_group(w_.piece(), "paged stash");
  hook(Step::Kind::offload_begin);
}

void StashWriter::hook(Step::Kind kind) {
  if (group_ != OffloadGroup::none) w_.hook(kind, group_);
}

/// Copies are the Triton kernels of ops/paged_stash.py: they read and write the rows that are tokens.
void StashWriter::saves(std::uint32_t tensor, const std::vector<OffloadGroup::Pages>& pages) {
  if (group_ == OffloadGroup::none) return;
  Piece& piece = w_.piece();
  const Bytes packed(piece.tensors[tensor].bytes.value * d_.moe.padded / d_.moe.held);
  const auto copy = [&](const char* what) {
    Kernel kernel;
    kernel.name = std::string("paged stash ") + what;
    kernel.key = {"copy.d2d", {packed.value}};
    kernel.stream = Stream::d2h;
    kernel.purpose = Purpose::offload;
    kernel.launches = static_cast<int>(pages.size());
    piece.kernels.push_back(std::move(kernel));
    return static_cast<std::uint32_t>(piece.kernels.size() - 1);
  };
  const auto out = copy("into pages"), in = copy("out of pages");
  auto& group = piece.groups[group_];
  group.moves.push_back({tensor, tensor, out, in, true, OffloadGroup::none, packed});
  for (auto one : pages) {
    one.owner = w_.owner("experts.stash_pages");
    group.pages.push_back(one);
  }
}

void offload_whole_layer(Piece& layer, const std::vector<std::uint32_t>& saved_again) {
  const auto group = add_group(layer, "layer");
  for (const auto& [tensor, after] : saved_by(layer)) {
    const Tensor saved = layer.tensors[tensor];
    if (elements(saved) < smallest_of_whole_layer || saved.home != Tensor::Home::allocator) continue;
    add_move(layer, group, tensor, tensor, true).after = after;
    if (std::find(saved_again.begin(), saved_again.end(), tensor) == saved_again.end()) continue;
    layer.tensors.push_back(saved);
    const auto twin = static_cast<std::uint32_t>(layer.tensors.size() - 1);
    add_move(layer, group, tensor, twin, false).after = after;
    const auto freed = std::find_if(layer.backward.begin(), layer.backward.end(), [&](const Step& step) {
      return step.kind == Step::Kind::free && step.index == tensor;
    });
    layer.backward.insert(freed, Step{Step::Kind::free, twin});
  }
  layer.forward.insert(layer.forward.begin(), Step{Step::Kind::offload_begin, group});
  const Step both[] = {{Step::Kind::reload_hook, group}, {Step::Kind::reload_wait, group}};
  layer.backward.insert(layer.backward.begin(), std::begin(both), std::end(both));
}

}  // namespace pipewright::model
