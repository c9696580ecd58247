"""The core: 40 cases of each device, from all families, that stay the same from run to run."""

CPU = """
product 512x512x512
product 513x257x129
product 64x8192x64
matrix times vector 4096x2048
batched product 16x128x64x128
linear, bias 128x768x1536
linear, bias, gelu 256x512x512
linear, silu gate 33x257x513
linear, softmax 256x512x512
linear 1x2048x2048
linear 16x768x3072
head 4x512x8000
sum of all 1000000
sum of rows 10000x100
sum of rows 10x100000
sum of columns 1000x1000
layer norm 512x768
rms norm 64x4096
batch norm, relu 4x64x56x56
softmax 300x1000
log softmax 8x32000
cross entropy 256x1000
mse 500x1000
gelu 512x2048
long chain 256x1024
row and column 512x2048
sum with a transpose 2048x2048
embedding, places, layer norm 10000x256, ids 8x128
cumsum of rows 100x10000
head, argmax 16x256x10000
attention 1x8x512x64
causal attention 1x2x1024x64
attention, one query, 2048 keys
attention, alibi 1x8x256x64
gelu MLP 128x512x1536
SwiGLU 1x512x1536
Llama layer, 64 words
Llama layer, cache of 512
Llama, 32 words
ResNet 1x3x64x64
"""

CUDA = """
product 2048x2048x2048
product 8205x2949x5921
product 64x65536x64
matrix times vector 16384x8192
batched product 64x512x128x512
linear, bias 2048x4096x4096
linear, bias, gelu 512x1024x4096
linear, silu gate 333x2570x1025
linear, softmax 512x1024x4096
linear 1x4096x4096
linear 16x4096x14336
head 4x4096x128256
sum of all 16000000
sum of rows 200000x100
sum of rows 200x100000
sum of columns 4096x4096
layer norm 8192x768
rms norm 4096x4096
batch norm, relu 16x256x56x56
softmax 16384x1000
log softmax 512x32000
cross entropy 8192x1000
mse 8192x4096
gelu 8192x4096
long chain 256x1024
row and column 8192x4096
sum with a transpose 4096x4096
embedding, places, layer norm 128256x4096, ids 8x1024
cumsum of rows 1000x10000
head, argmax 16x4096x128256
attention 8x16x1024x64
causal attention 4x32x2048x128
attention, one query, 8192 keys
attention, alibi 4x16x2048x128
gelu MLP 1024x4096x14336
SwiGLU 1x4096x14336
Llama layer, 1024 words
Llama layer, cache of 8192
Llama, 512 words
ResNet 8x3x224x224
"""

CORE = {"cpu": CPU.strip().splitlines(), "cuda": CUDA.strip().splitlines()}
"""The names of the cases of the core."""
