// Random numbers that are the same on every machine, whatever the standard library.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace pipewright {

/// splitmix64 (Steele, Lea and Flood 2014): 64 bits a number, any seed as good as another.
class Chance {
 public:
  explicit Chance(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  template <class T>
  void shuffle(std::vector<T>& list) {
    for (std::size_t left = list.size(); left > 1; --left) std::swap(list[left - 1], list[next() % left]);
  }

 private:
  std::uint64_t state_;
};

}  // namespace pipewright
