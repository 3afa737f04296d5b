// What launches of kernels share: the limits of a device, kernels made ready on it, launches that do not wait.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <mutex>

namespace jaxmd {

// What a device is asked once.
struct DeviceLimits {
  cudaError_t status = cudaSuccess;
  int multiprocessors = 0, shared = 0;  // shared: bytes that a block may take
  int major = 0, minor = 0;             // compute capability
};

inline DeviceLimits query_device_limits(int ordinal) {
  DeviceLimits device;
  const auto ask = [&](int* value, cudaDeviceAttr attribute) {
    if (device.status == cudaSuccess) device.status = cudaDeviceGetAttribute(value, attribute, ordinal);
  };
  ask(&device.multiprocessors, cudaDevAttrMultiProcessorCount);
  ask(&device.shared, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  ask(&device.major, cudaDevAttrComputeCapabilityMajor);
  ask(&device.minor, cudaDevAttrComputeCapabilityMinor);
  return device;
}

constexpr int kMostDevices = 64;

// The current device's ordinal and limits.
inline const DeviceLimits& current_device(int* ordinal) {
  static std::once_flag once[kMostDevices];
  static DeviceLimits limits[kMostDevices];
  static const DeviceLimits none = {cudaErrorInvalidDevice};
  *ordinal = 0;
  if (cudaGetDevice(ordinal) != cudaSuccess || *ordinal < 0 || *ordinal >= kMostDevices) return none;
  std::call_once(once[*ordinal], [&] { limits[*ordinal] = query_device_limits(*ordinal); });
  return limits[*ordinal];
}

// A kernel on each device: allowed all the shared memory that there is, and its registers, both asked once. Loading a
// kernel is no part of a stream capture, so the capture is told to allow it.
class KernelOnDevices {
 public:
  explicit KernelOnDevices(const void* kernel) : kernel_(kernel) {}

  cudaError_t prepare(int ordinal, const DeviceLimits& device, cudaFuncAttributes* attributes = nullptr) {
    std::call_once(once_[ordinal], [&] {
      cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
      status_[ordinal] = cudaThreadExchangeStreamCaptureMode(&mode);
      if (status_[ordinal] != cudaSuccess) return;
      status_[ordinal] = cudaFuncGetAttributes(&attributes_[ordinal], kernel_);
      if (status_[ordinal] == cudaSuccess) {
        const int dynamic = device.shared - static_cast<int>(attributes_[ordinal].sharedSizeBytes);
        status_[ordinal] = cudaFuncSetAttribute(kernel_, cudaFuncAttributeMaxDynamicSharedMemorySize, dynamic);
      }
      cudaThreadExchangeStreamCaptureMode(&mode);
    });
    if (attributes != nullptr) *attributes = attributes_[ordinal];
    return status_[ordinal];
  }

  // Blocks of `threads` and `shared` bytes that a multiprocessor holds, by registers (of 65536) and shared memory.
  static int resident_blocks(const cudaFuncAttributes& attributes, const DeviceLimits& device, int threads,
                             int shared) {
    const int registers = (attributes.numRegs + 7) / 8 * 8 * threads;
    const int by_registers = registers > 0 ? 65536 / registers : 32, by_threads = 2048 / threads;
    const int by_shared = (device.shared + 1024) / (shared + 1024);
    const int most = by_registers < by_threads ? by_registers : by_threads;
    const int blocks = most < by_shared ? most : by_shared;
    return blocks < 1 ? 1 : blocks;
  }

 private:
  const void* kernel_;
  std::once_flag once_[kMostDevices];
  cudaError_t status_[kMostDevices] = {};
  cudaFuncAttributes attributes_[kMostDevices] = {};
};

// A kernel of `launch_early` begins with it: all that was launched before is done from here on.
__device__ inline void wait_for_earlier_kernels() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Launches a kernel on Hopper and later while the one before it in the stream still ends.
template <class... Parameters, class... Arguments>
cudaError_t launch_early(cudaStream_t stream, void (*kernel)(Parameters...), dim3 grid, int threads, int shared,
                         const Arguments&... arguments) {
  int ordinal;
  const DeviceLimits& device = current_device(&ordinal);
  if (device.status != cudaSuccess) return device.status;
  cudaLaunchAttribute early;
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared);
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = device.major >= 9 ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

}  // namespace jaxmd
