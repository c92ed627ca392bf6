#include "builder.hpp"

#include <algorithm>

namespace pipewright::model {

std::uint32_t Owners::operator()(std::string_view name) {
  if (const auto known = index_.find(name); known != index_.end()) return known->second;
  names_.emplace_back(name);
  return index_.emplace(name, static_cast<std::uint32_t>(names_.size() - 1)).first->second;
}

Tensor dummy_gradient(Owners& owners, Int in, Int out) {
  Tensor tensor{owners("dummy weight gradients"), Bytes(2 * in * out), Stream::compute, Tensor::Home::cached};
  tensor.shape = static_cast<std::uint32_t>(out);
  return tensor;
}

PieceBuilder::PieceBuilder(Owners& owners, std::string name) : owners_(owners), steps_(&piece_.forward) {
  piece_.name = std::move(name);
  piece_.tensors.resize(4);
}

void PieceBuilder::border(std::uint32_t which, std::string_view owner, Int bytes, Tensor::Home home) {
  piece_.tensors[which] = Tensor{owners_(owner), Bytes(bytes), Stream::compute, home};
}

void PieceBuilder::to_node(schedule::Node::Name name, schedule::Node::Pass pass) {
  using Pass = schedule::Node::Pass;
  auto& nodes = piece_.nodes;
  auto node = std::find_if(nodes.begin(), nodes.end(), [&](const NodeSteps& n) { return n.name == name; });
  if (node == nodes.end()) node = nodes.insert(node, NodeSteps{name, {}, {}, {}});
  steps_ = pass == Pass::forward ? &node->forward : pass == Pass::backward ? &node->backward : &node->weight_gradient;
}

Piece PieceBuilder::take_as_node(schedule::Node::Name name) {
  piece_.nodes.push_back({name, std::move(piece_.forward), std::move(piece_.backward), {}});
  piece_.forward.clear();
  piece_.backward.clear();
  return take();
}

std::uint32_t PieceBuilder::tensor(std::string_view owner, Int bytes, Tensor::Home home) {
  piece_.tensors.push_back(Tensor{owners_(owner), Bytes(bytes), Stream::compute, home});
  piece_.tensors.back().varies = varies_ && home == Tensor::Home::allocator;
  return static_cast<std::uint32_t>(piece_.tensors.size() - 1);
}

std::uint32_t PieceBuilder::allocate(std::string_view owner, Int bytes) {
  const auto id = tensor(owner, bytes);
  allocate(id);
  return id;
}

std::uint32_t PieceBuilder::view(std::uint32_t tensor) {
  Tensor same = piece_.tensors[tensor];
  same.home = Tensor::Home::view;
  piece_.tensors.push_back(same);
  const auto id = static_cast<std::uint32_t>(piece_.tensors.size() - 1);
  allocate(id);
  return id;
}

void PieceBuilder::dummy_gradient(Int in, Int out) {
  piece_.tensors.push_back(model::dummy_gradient(owners_, in, out));
  const auto id = static_cast<std::uint32_t>(piece_.tensors.size() - 1);
  allocate(id);
  free(id);
}

void PieceBuilder::returns(Int bytes, const std::string& name, profile::Key key) {
  Returned returned{bytes, {}};
  returned.accumulation.name = name;
  returned.accumulation.key = std::move(key);
  returned_.push_back(std::move(returned));
}

std::uint32_t PieceBuilder::allocate_float(std::string_view owner, Int bytes) {
  const auto id = allocate(owner, bytes);
  piece_.tensors[id].element_bytes = sizeof(float);
  return id;
}

std::uint32_t PieceBuilder::allocate_exchanged(std::string_view owner, Int bytes) {
  const auto id = allocate(owner, bytes);
  piece_.tensors[id].exchanged = true;
  return id;
}

std::uint32_t PieceBuilder::allocate_on(Stream stream, std::string_view owner, Int bytes) {
  const auto id = allocate(owner, bytes);
  piece_.tensors[id].stream = stream;
  return id;
}

std::uint32_t PieceBuilder::allocate_gradient(Int bytes) {
  const auto id = allocate("weight gradients", bytes);
  piece_.tensors[id].gradient = true;
  piece_.tensors[id].varies = false;
  return id;
}

void PieceBuilder::small_gradient(const std::string& name, Int elements) {
  const auto gradient = allocate_gradient(2 * elements);
  if (graphed())
    returns(2 * elements, name + " gradient accumulation", {"small", {}});
  else
    launch(name + " gradient accumulation", {"small", {}});
  free(gradient);
}

void PieceBuilder::free(std::uint32_t tensor) {
  if (tensor != no_tensor) step(Step::Kind::free, tensor);
}

void PieceBuilder::free(std::initializer_list<std::uint32_t> tensors) {
  for (const auto tensor : tensors) free(tensor);
}

void PieceBuilder::launch(const std::string& name, profile::Key key, double sm_share) {
  launch_on(Stream::compute, Purpose::compute, name, std::move(key), {});
  piece_.kernels.back().sm_share = sm_share;
}

void PieceBuilder::launch_on(Stream stream, Purpose purpose, const std::string& name, profile::Key key,
                             const std::string& link) {
  Kernel kernel;
  kernel.name = name;
  kernel.key = std::move(key);
  kernel.stream = stream;
  kernel.purpose = purpose;
  kernel.link = link;
  launch(std::move(kernel));
}

void PieceBuilder::launch(Kernel kernel) {
  kernel.recompute = recompute_;
  kernel.graphed = graphed();
  step(Step::Kind::launch, static_cast<std::uint32_t>(piece_.kernels.size()));
  piece_.kernels.push_back(std::move(kernel));
}

void PieceBuilder::launch(Kernel kernel, const std::vector<std::pair<std::int32_t, std::int32_t>>& microbatches) {
  launch(std::move(kernel));
  const Step all = steps_->back();
  steps_->pop_back();
  for (const auto& [from, before] : microbatches)
    if (std::max(from, all.from_microbatch) < std::min(before, all.before_microbatch))
      steps_->push_back(
          {all.kind, all.index, std::max(from, all.from_microbatch), std::min(before, all.before_microbatch)});
}

void PieceBuilder::collective(Purpose purpose, const std::string& name, const std::string& kind, Int ranks, Int bytes,
                              const Way& way, Stream stream) {
  launch(collective_kernel(purpose, name, kind, ranks, bytes, way, stream));
}

void PieceBuilder::dispatcher(const std::string& name, profile::Exchange::Kind kind, const MoeDimensions& moe,
                              Int bytes) {
  const Int ranks = moe.ep * moe.etp;
  Kernel kernel = collective_kernel(Purpose::ep, name, "all_to_all", ranks, bytes, moe.group_link, Stream::compute);
  profile::Exchange exchange = exchange_among(ranks, moe.group_link);
  exchange.kind = kind;
  exchange.bytes = static_cast<double>(bytes);
  exchange.library = moe.library;
  exchange.domains_a_token = moe.domains_a_token;
  exchange.gpus_a_token = moe.gpus_a_token;
  exchange.busiest = moe.busiest;
  exchange.multiprocessors = moe.multiprocessors;
  kernel.exchange = exchange;
  launch(std::move(kernel));
}

profile::Key accumulation(const Dimensions& d, Int elements) {
  if (d.fsdp) return {"copy.d2d", {2 * elements}};
  return {d.gradient_bytes == 4 ? "add.f32" : "add", {elements}};
}

Kernel host_work(const std::string& name, const char* host_family, int launches) {
  Kernel kernel;
  kernel.name = name;
  kernel.host_family = host_family;
  kernel.launches = launches;
  return kernel;
}

static std::optional<profile::Exchange::Kind> kind_named(std::string_view name) {
  using Kind = profile::Exchange::Kind;
  for (const Kind each : {Kind::all_gather, Kind::reduce_scatter, Kind::all_reduce, Kind::all_to_all, Kind::send_recv})
    if (profile::name(each) == name) return each;
  return std::nullopt;
}

Kernel collective_kernel(Purpose purpose, const std::string& name, const std::string& kind, Int ranks, Int bytes,
                         const Way& way, Stream stream) {
  Kernel kernel;
  kernel.name = name;
  kernel.key = {kind + "." + way.link, {ranks, bytes}};
  if (kind == "send_recv") kernel.key.dims = {bytes};
  kernel.stream = stream;
  kernel.purpose = purpose;
  kernel.link = way.link;
  if (!way.leaves) return kernel;
  profile::Exchange exchange = exchange_among(ranks, way);
  exchange.kind = *kind_named(kind);
  exchange.bytes = static_cast<double>(bytes);
  kernel.exchange = exchange;
  return kernel;
}

std::optional<profile::Exchange> exchange_of(const Kernel& kernel) {
  if (kernel.exchange || kernel.link.empty()) return kernel.exchange;
  const auto kind = kind_named(kernel.key.family.substr(0, kernel.key.family.find('.')));
  if (!kind) return std::nullopt;
  profile::Exchange exchange;
  exchange.kind = *kind;
  exchange.ranks = *kind == profile::Exchange::Kind::send_recv ? 2 : kernel.key.dims.front();
  exchange.bytes = static_cast<double>(kernel.key.dims.back());
  return exchange;
}

}  // namespace pipewright::model
