// The host thread of one rank as a recorder: what it issues becomes the rank's program, in order.
#pragma once

#include <optional>

#include "order.hpp"
#include "pipewright/schedule.hpp"

namespace pipewright::schedule {

/// What one call of P2PCommunicator._communicate sends and receives.
struct Transfers {
  std::optional<Part> send_next{}, recv_prev{}, send_prev{}, recv_next{};
};

class Host {
 public:
  Host(const Config& config, Place place, RankProgram& program);

  void forward(Op op) { compute(Kind::forward, op); }
  void backward(Op op) { compute(Kind::backward, op); }
  void combined(Op forward, Op backward);
  void combined_begin(std::optional<Op> forward, std::optional<Op> backward);
  void combined_end() { add(Kind::combined_end); }
  void node(Op op, Node node, bool on_communication_stream);

  void synchronous(const Transfers& transfers) { communicate(Kind::p2p_sync, transfers); }
  void asynchronous(const Transfers& transfers) { communicate(Kind::p2p_async, transfers); }
  void wait(Part part);

  /// The output of F `op` is no longer needed by a send; the last stage has none worth freeing (its loss is a scalar).
  void deallocate(Op op);

  /// Only the change is an instruction: `no_sync` is entered at most once.
  void disable_grad_sync();
  void enable_grad_sync();
  bool grad_sync_disabled() const { return no_sync_; }
  void param_sync(int chunk) { add(Kind::param_sync).chunk = chunk; }
  void grad_sync(int chunk) { add(Kind::grad_sync).chunk = chunk; }

  /// `with torch.cuda.stream(get_comm_stream())`: what the host issues inside is marked @c.
  class OnCommunicationStream {
   public:
    explicit OnCommunicationStream(Host& host) : host_(host) { host_.on_communication_stream_ = true; }
    ~OnCommunicationStream() { host_.on_communication_stream_ = false; }
    OnCommunicationStream(const OnCommunicationStream&) = delete;
    OnCommunicationStream& operator=(const OnCommunicationStream&) = delete;

   private:
    Host& host_;
  };

 private:
  Instruction& add(Kind kind);
  void compute(Kind kind, Op op);
  void communicate(Kind kind, const Transfers& transfers);

  const Config& config_;
  Place place_;
  RankProgram& program_;
  bool no_sync_ = false;
  bool on_communication_stream_ = false;
};

}  // namespace pipewright::schedule
