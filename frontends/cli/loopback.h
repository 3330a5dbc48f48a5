// How fast this machine talks to itself over TCP.
#pragma once

#include <gradpress/status.h>

namespace gradpress::cli {

struct Loopback {
  double gbps = 0.0;        ///< one stream, one direction
  double latency_us = 0.0;  ///< half of the median round trip of one byte
};

/// Two threads over 127.0.0.1.
/// Cost:   about a tenth of a second.
/// Errors: kInternal, with the system's words, where there is no loopback to use.
Result<Loopback> measure_loopback();

}  // namespace gradpress::cli
