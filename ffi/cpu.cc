// The CPU module: a table from target name to handler, nothing else.
#include <nanobind/nanobind.h>

NB_MODULE(_cpu, m) {
  m.def("handlers", [] { return nanobind::dict(); });
}
