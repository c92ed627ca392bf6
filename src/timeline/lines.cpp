// Host lines with their prices, see lines.hpp.
#include "lines.hpp"

#include <algorithm>

namespace pipewright::timeline {
namespace {

using model::Step;

Lane lane_of(model::Stream stream) {
  switch (stream) {
    case model::Stream::compute:
      return Lane::compute;
    case model::Stream::communication:
      return Lane::communication;
    case model::Stream::gradient:
      return Lane::gradient;
    case model::Stream::parameter:
      return Lane::parameter;
    case model::Stream::d2h:
      return Lane::d2h;
    case model::Stream::h2d:
      return Lane::h2d;
  }
  throw InternalError("stream without a lane");
}

HostLine launch(const model::Kernel& kernel, const Price& price, std::uint32_t piece, std::uint32_t index,
                std::int64_t gap_ns) {
  HostLine line;
  line.index = index;
  line.piece = piece;
  line.host_ns = nanoseconds(price.host_us);
  line.on_gpu = !kernel.key.family.empty();
  if (!line.on_gpu) return line;
  line.own_stream = kernel.stream == model::Stream::compute;
  line.load = price.load;
  line.ns = whole_ns(price.time.ns / kernel.sm_share) + gap_ns;
  line.label.lane = lane_of(kernel.stream);
  line.label.purpose = kernel.purpose;
  line.label.partitioned = kernel.sm_share < 1;
  line.label.recompute = kernel.recompute;
  line.label.joins_pipeline = kernel.joins_pipeline;
  line.label.set_kernel(piece, index);
  return line;
}

class Writer {
 public:
  Writer(const model::Stages& stages, const Prices& prices, std::int64_t gap_ns)
      : stages_(stages), prices_(prices), gap_(gap_ns) {}

  HostPiece piece(std::uint32_t index) const {
    const model::Piece& piece = stages_.pieces[index];
    HostPiece result;
    result.forward = lines(index, piece.forward);
    result.backward = lines(index, piece.backward);
    for (const model::NodeSteps& node : piece.nodes)
      result.nodes.push_back(
          {node.name, {lines(index, node.forward), lines(index, node.backward), lines(index, node.weight_gradient)}});
    return result;
  }

 private:
  HostLines lines(std::uint32_t piece, const std::vector<Step>& steps) const {
    HostLines result;
    for (const Step& step : steps) {
      if (step.kind == Step::Kind::allocate || step.kind == Step::Kind::free) continue;
      HostLine line;
      if (step.kind == Step::Kind::launch)
        line = launch(stages_.pieces[piece].kernels[step.index], prices_.pieces[piece][step.index], piece, step.index,
                      gap_);
      else if (step.kind == Step::Kind::wait || step.kind == Step::Kind::synchronize)
        line.label.lane = lane_of(static_cast<model::Stream>(step.index));
      line.kind = step.kind;
      line.index = step.index;
      line.piece = piece;
      line.own_stream = line.label.lane == Lane::compute;
      line.from_microbatch = step.from_microbatch;
      line.before_microbatch = step.before_microbatch;
      result.push_back(line);
    }
    return result;
  }

  const model::Stages& stages_;
  const Prices& prices_;
  const std::int64_t gap_;
};

}  // namespace

const HostNode* HostPiece::node(schedule::Node::Name name) const {
  for (const HostNode& node : nodes)
    if (node.name == name) return &node;
  return nullptr;
}

std::vector<HostPiece> lines_of_pieces(const model::Stages& stages, const Prices& prices, std::int64_t gap_ns) {
  const Writer writer(stages, prices, gap_ns);
  std::vector<HostPiece> result;
  for (std::uint32_t piece = 0; piece < stages.pieces.size(); ++piece) result.push_back(writer.piece(piece));
  return result;
}

HostLines lines_of(const std::vector<model::Kernel>& kernels, const Prices::List& prices, std::int64_t gap_ns,
                   std::uint32_t chunk) {
  HostLines result;
  for (std::uint32_t k = 0; k < kernels.size(); ++k) {
    result.push_back(launch(kernels[k], prices[k], Label::none, k, gap_ns));
    result.back().label.set_kernel(Label::none, k, chunk);
    result.back().read_by_host = kernels[k].read_by_host;
  }
  return result;
}

std::size_t count(const HostLines& lines) {
  return static_cast<std::size_t>(
      std::count_if(lines.begin(), lines.end(), [](const HostLine& l) { return l.on_gpu; }));
}

}  // namespace pipewright::timeline
