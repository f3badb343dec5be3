static __device__ unsigned thread_index() {
    return blockIdx.x * blockDim.x + threadIdx.x;
}
