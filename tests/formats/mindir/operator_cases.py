"""How each operator of op_lists/schemas/mindspore.toml is called, operand by operand: data, without MindSpore.

The place of an operand here is its place in a MindIR file, so the table says which of them are slots.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Tensor:
    """A tensor of ones. ``kind`` is "float" (its type follows its slot), "state" (a Parameter) or an element type."""

    shape: tuple[int, ...]
    kind: str = "float"


@dataclass(frozen=True)
class Dtype:
    """A type as an operand."""

    name: str


@dataclass(frozen=True)
class Case:
    """A call: Primitive(*init, **options)(*operands). Operands that are no Tensor, or tuple of them, are constants."""

    operands: tuple[Any, ...] = ()
    init: tuple[Any, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)


def f(*shape: int) -> Tensor:
    return Tensor(shape)


def i(*shape: int) -> Tensor:
    return Tensor(shape, "int32")


def j(*shape: int) -> Tensor:
    return Tensor(shape, "int64")


def b(*shape: int) -> Tensor:
    return Tensor(shape, "bool")


def state(*shape: int) -> Tensor:
    return Tensor(shape, "state")


def none(count: int) -> tuple[None, ...]:
    return (None,) * count


X, BATCH, STATE, H = f(2, 3), f(2, 3, 3), state(2, 3), f(1, 2, 3)
SIGNAL, IMAGE, VOLUME, HEADS = f(2, 4, 8), f(2, 4, 8, 8), f(1, 2, 4, 4, 4), f(1, 2, 16, 32)
MASK = Tensor((1, 1, 16, 16), "uint8")

# "names: operands | arguments of the primitive", several to a line between semicolons.
TABLE = """
# elementwise
Abs Neg Sign Exp Exp2 Expm1 Log Log1p Log2 Log10 Sqrt Rsqrt Square Reciprocal Inv Sin Cos Tan Asin ACos: X
Atan Sinh Cosh Asinh Acosh Atanh AsinExt AcosExt AtanExt AsinhExt AcoshExt Tanh Erf Erfc Erfinv Floor Ceil: X
Trunc Frac Rint Lgamma Digamma BesselI0 BesselI1 BesselJ0 BesselJ1 Sinc Sigmoid ReLU ReLU6 ReLUV3 GeLU: X
FastGeLU SiLU HSwish HSigmoid Mish MishExt Softplus Softsign SeLU SeLUExt LogSigmoid IsFinite IsInf IsNan: X
IsNegInf Identity Contiguous Copy Clone Flatten TensorShape Max Min: X
Median MedianExt NonZero L2Loss Tril: X
Add Sub Mul Div RealDiv DivNoNan Pow Maximum Minimum FloorMod Mod TruncateMod TruncateDiv FloorDiv: X, X
AddV2 SquaredDifference Atan2 Atan2Ext Hypot Fmax Fmin RemainderTensorTensor FmodTensor Heaviside: X, X
NextAfter Xlogy Xdivy LogAddExp LogAddExp2 MulNoNan Equal NotEqual Greater GreaterEqual Less LessEqual: X, X
EqualExt ApproximateEqual SquareSumAll SigmoidCrossEntropyWithLogits SoftmaxCrossEntropyWithLogits: X, X
KLDivLoss ReluGrad SigmoidGrad TanhGrad SiLUGrad SqrtGrad RsqrtGrad ReciprocalGrad InvGrad AbsGrad: X, X
ACosGrad AcoshGrad AsinGrad AsinhGrad AtanGrad EluGrad SeluGrad FastGeLUGrad HSigmoidGrad HSwishGrad: X, X
MishGradExt ReLU6Grad SoftplusGrad ExpandAs: X, X ; AddExt SubExt: X, X, 2 ; AddScalar SubScalar: X, 2.0, 1
Muls Divs PowTensorScalar RemainderTensorScalar FmodScalar FloorDivScalar XLogYScalarOther EqScalar: X, 2.0
GreaterEqualScalar LessScalar Fills: X, 2.0 ; PowScalarTensor RemainderScalarTensor XLogYScalarSelf: 2.0, X
LogicalAnd LogicalOr LogicalXor BitwiseAndTensor BitwiseOrTensor: b(2, 3), b(2, 3) ; Lerp ClampTensor: X, X, X
Addcmul Addcdiv: X, X, X, f(1) ; AddcmulExt AddcdivExt: X, X, X, 1.0 ; AddN AccumulateNV2: (X, X)
Select SelectV2: b(2, 3), X, X ; DivMod: X, X, "floor" ; DivMods: X, 2.0, "floor"
Hardtanh ClampScalar Threshold: X, 0.0, 1.0 ; Elu: X | 1.0 ; CeLU EluExt HShrink SoftShrink: X | 0.5
LeakyReLUExt: X, 0.1 ; Logit: X | 0.1 ; Unique: f(3) ; TensorToScalar: f() ; LogicalNot: b(2, 3)
LerpScalar: X, X, 0.5 ; BiasAdd: X, f(3) ; GeluExt: X, "none" ; GLU: f(2, 4) | 1
IsClose: X, X | 0.1, 0.1, False ; NanToNum: X | 0.0, None, None ; Polygamma: j(), X ; PReLU: f(2, 3, 4), f(3)
Round: X, 0 ; SoftplusExt: X, 1, 20 ; Swiglu: f(2, 4), -1
# products
MatMul MatMulExt Mm: X, f(3, 4) ; BatchMatMul BatchMatMulExt: BATCH, BATCH ; Ger Outer Dot: f(3), f(3)
Conv1DExt: SIGNAL, f(3, 4, 3), f(3), (1,), (0,), (1,), 1
Conv2DExt: IMAGE, f(3, 4, 3, 3), f(3), (1, 1), (0, 0), (1, 1), 1
Conv3DExt: VOLUME, f(3, 2, 2, 2, 2), f(3), (1, 1, 1), (0, 0, 0), (1, 1, 1), 1
Convolution: IMAGE, f(3, 4, 3, 3), f(3), (1, 1), (0, 0), (1, 1), False, (0, 0), 1
Conv2D: IMAGE, f(3, 4, 3, 3) | 3, 3 ; Conv3D: VOLUME, f(3, 2, 2, 2, 2) | 3, 2
Conv2DBackpropInput Conv2DTranspose: f(2, 3, 6, 6), f(3, 4, 3, 3), (2, 4, 8, 8) | 3, 3, pad_mode="valid"
Conv2DBackpropFilter: f(2, 3, 6, 6), IMAGE, (3, 4, 3, 3) | 3, 3, pad_mode="valid"
Conv3DTranspose: f(1, 3, 3, 3, 3), f(3, 2, 2, 2, 2) | 3, 2, 2
Conv3DBackpropInput: f(3, 2, 2, 2, 2), f(1, 3, 3, 3, 3), (1, 2, 4, 4, 4) | 3, 2
ConvTranspose2D: IMAGE, f(4, 3, 3, 3), f(3), (1, 1), (0, 0), (0, 0), 1, (1, 1)
ConvolutionGrad: f(2, 3, 6, 6), IMAGE, f(3, 4, 3, 3), f(3), (1, 1), (0, 0), (1, 1), False, (0, 0), 1, (1, 1, 1)
Mv: X, f(3) ; Dense: X, f(4, 3), f(4) ; Addmm: f(2, 4), X, f(3, 4), 1, 1 ; Baddbmm: BATCH, BATCH, BATCH, 1, 1
Addbmm: f(3, 3), BATCH, BATCH, 1, 1 ; Addmv: f(2), X, f(3), 1, 1 ; Einsum: (X, f(3, 4)) | "ij,jk->ik"
Cross: X, X | 1 ; GroupedMatmul: (X,), (f(3, 4),), *none(6) | 0, -1
LSTM: f(5, 2, 4), H, H, f(108, 1, 1) | 4, 3, 1, True, False, 0.0
MultiScaleDeformableAttn: f(1, 100, 8, 32), i(1, 2), i(1), f(1, 4, 8, 1, 4, 2), f(1, 4, 8, 1, 4)
DeformableOffsets: IMAGE, f(2, 27, 8, 8) | (1, 1, 1, 1), (1, 1, 1, 1), (3, 3), (1, 1, 1, 1), "NCHW", 1, True
# reductions
Softmax LogSoftmax Squeeze: f(1, 3) | 0 ; ReduceMean ReduceMax ReduceMin ReduceProd ReduceSum: X, (1,) | True
ReduceAll ReduceAny: b(2, 3), (1,) | True ; MeanExt SumExt Nansum: X, (1,), True, None
CumSum CumProd CumminExt: X, 1 ; ArgMaxExt ArgMinExt MaxDim MinDim MedianDim: X, 1, True
ArgMaxWithValue ArgMinWithValue: X | 1, True ; Std Var StdMean VarMean: X, (1,), 1, True
Cummax Cummin Argmax Argmin L2Normalize: X | 1 ; ArgSort SortExt: X, 1, False, False ; CountNonZero: X, (1,)
CumsumExt LogSoftmaxExt: X, 1, None ; CumulativeLogsumexp: X, j() ; Kthvalue: X, 1, 1, True
LinalgVectorNorm Norm: X, 2.0, (1,), True, None ; LogSumExp: X, (1,), True ; LpNorm: X | [1], 2
LpNormV2: X, 2.0, (1,), True, 0.1 ; Pdist Sort: X ; Cdist: X, X | 2.0 ; ProdExt: X, 1, True, None
ReduceStd: X | (1,), True, True ; Renorm: X | 2, 1, 1.0 ; SearchSorted: f(3), f(3), None ; TopK: X, 2
TopkExt: X, 2, 1, True, True ; Trace TraceExt: f(3, 3) ; Unique2: X, True, True, False
UniqueConsecutive: X | True, True
MatrixInverse MatrixDeterminant LogMatrixDeterminant MatrixExp Cholesky: BATCH
# moves
Diag: f(3) ; DiagPart: f(3, 3) ; Reshape: X, (3, 2) ; Transpose TransposeView: X, (1, 0)
ExpandDims ExpandDimsView TrilExt: X, 0 ; Concat StackExt: (X, X) | 0 ; Stack: (X, X)
Unstack TExt: X ; Split: f(2, 4) | 1, 2 ; SplitTensor SplitTensorView Chunk ChunkView: f(2, 4), 2, 1
SplitWithSize SplitWithSizeView: f(2, 4), (1, 3), 1 ; SplitV: f(2, 4) | [1, 3], 1, 2
Gather EmbeddingLookup: X, i(2), 0 ; GatherD: X, 1, i(2, 3) ; GatherNd GatherNdExt: X, i(2, 1)
Embedding: i(2, 3), f(5, 4), None, None, 2.0, False ; IndexSelect: X, 0, i(2) ; Index: X, (j(2),)
Take: X, j(2) ; StridedSlice: X, (0, 0), (1, 2), (1, 1) ; Slice: X, (0, 0), (1, 2)
SliceExt SliceExtView: X, 1, 0, 2, 1 ; Narrow NarrowView: X, 1, 0, 2 ; SelectExtView: X, 1, 0
UnstackExtView: X, 1 ; TransposeExtView: X, 0, 1 ; DiagonalView: f(3, 3), 0, 0, 1 ; Tile Repeat: X, (2, 1)
BroadcastTo: X | (2, 2, 3) ; BroadcastToView: X, (2, 2, 3) ; RepeatInterleaveInt: X, 2, 1, None
RepeatInterleaveTensor: X, j(3), 1, None ; Meshgrid: (f(3), f(3)) | "xy" ; Pad: X | ((1, 1), (0, 0))
PadV3: X, (1, 1, 0, 0), f() ; ConstantPadND: X, (1, 1), 0.5 ; MirrorPad: X, j(2, 2) | "REFLECT"
ReflectionPad1D ReplicationPad1D: SIGNAL, (1, 1) ; ReflectionPad2D ReplicationPad2D: IMAGE, (1, 1, 1, 1)
ReflectionPad3D ReplicationPad3D: VOLUME, (1, 1, 1, 1, 1, 1) ; OneHot OneHotExt: i(2), 3, f(), f()
MaskedFill: X, b(2, 3), f() ; MaskedFillScalar: X, b(2, 3), 0.5 ; MaskedSelect: X, b(2, 3)
MaskedScatter: X, b(2, 3), X ; Scatter: X, 1, i(2, 3), X, "none" ; ScatterValue: X, 1, j(2, 3), 1.0, "none"
ScatterAddExt: X, 1, j(2, 3), X ; ScatterNd: i(2, 1), X, (2, 3)
TensorScatterUpdate TensorScatterAdd TensorScatterSub TensorScatterMul TensorScatterDiv: X, i(2, 1), X
TensorScatterMax TensorScatterMin: X, i(2, 1), X ; TensorScatterElements: X, i(2, 3), X | 1, "none"
IndexAddExt: X, 0, j(2), X, 1 ; IndexFillScalar: X, 0, j(2), 0.5 ; IndexFillTensor: X, 0, j(2), f()
InplaceUpdateV2: X, (0,), f(1, 3)
UnsortedSegmentSum UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentProd: X, i(2), 2
SegmentSum SegmentMean: X, i(2) ; MatrixDiagV3: X, i(), i(), i(), f() ; MatrixSetDiagV3: f(3, 3), f(1, 3), i(2)
MatrixBandPart: f(3, 3), 1, 1 ; Triu: X | 0 ; DiagExt: f(3), 0 ; Diagonal: f(3, 3) | 0, 0, 1
FlattenExt: X, 0, -1 ; ReverseV2: X | (1,) ; ReverseSequence: X, i(2) | 1 ; Roll: X | (1,), (0,)
DepthToSpace SpaceToDepth ChannelShuffle: IMAGE | 2 ; BatchToSpaceND: f(4, 1, 2, 2) | [2, 2], [[0, 0], [0, 0]]
SpaceToBatchND: f(1, 1, 4, 4) | [2, 2], [[0, 0], [0, 0]] ; Im2Col: IMAGE | [2, 2]
Im2ColExt: IMAGE, (2, 2), (1, 1), (0, 0), (1, 1) ; Col2Im: f(2, 4, 4, 49), i(2) | [2, 2], [1, 1], [0, 0], [1, 1]
Col2ImExt: f(2, 16, 49), (8, 8), (2, 2), (1, 1), (0, 0), (1, 1)
ExtractImagePatches: IMAGE | [1, 1, 2, 2], [1, 1, 2, 2], [1, 1, 1, 1], "valid" ; FillV2: (2, 3), f()
Cast: X, Dtype("int32")
# made
OnesLikeExt ZerosLikeExt: X, None ; FullLike: X, 2.0, None
Eye: 3, 3, Dtype("float32") ; FillScalar: (2, 3), 1.0, Dtype("float32")
FillTensor: (2, 3), f(), Dtype("float32") ; Range: f(), f(), f()
LinSpace: f(), f(), 5 ; LinSpaceExt: 0.0, 1.0, 5, Dtype("float32")
StandardNormal UniformReal StandardLaplace: (2, 3) ; UniformInt: (2, 3), i(), i()
RandExt Randn: (2, 3), j(), j(), Dtype("float32"), None ; RandLikeExt RandnLike: X, j(), j(), None, None
UniformExt: X, 0.0, 1.0, j(), j() ; Bernoulli: X, f() ; BernoulliExt: X, j(), j() ; Multinomial: X, 2
MultinomialExt: X, 2, True, j(), j() ; Gamma: (2, 3), f(1), f(1) ; Dropout: X | 0.5 ; Dropout2D: IMAGE | 0.5
Dropout3D: VOLUME | 0.5 ; DropoutExt: X, 0.5, j(), j() ; DropoutDoMaskExt: X, Tensor((128,), "uint8"), 0.5
# pools
MaxPool AvgPool MaxPoolWithArgmaxV2: IMAGE | 2, 2 ; MaxPool3D AvgPool3D: VOLUME | 2, 2
MaxPoolWithMask MaxPoolWithIndices: IMAGE | (2, 2), (2, 2), (0, 0), (1, 1), False
MaxPool3DWithArgmax: VOLUME | (2, 2, 2), (2, 2, 2), (0, 0, 0) ; AvgPool1D: SIGNAL, (2,), (2,), (0,), False, True
AvgPool2D: IMAGE, (2, 2), (2, 2), (0, 0), False, True, None
AvgPool3DExt: VOLUME, (2, 2, 2), (2, 2, 2), (0, 0, 0), False, True, None ; AdaptiveAvgPool1D: SIGNAL, 2
AdaptiveAvgPool2D AdaptiveMaxPool2D: IMAGE | (2, 2) ; AdaptiveAvgPool2DExt: IMAGE, (2, 2)
AdaptiveAvgPool3D: VOLUME | (2, 2, 2) ; AdaptiveAvgPool3DExt: VOLUME, (2, 2, 2)
AdaptiveMaxPool1D: SIGNAL, (2,) ; AdaptiveMaxPool3D: VOLUME, i(3)
FractionalMaxPoolWithFixedKsize: IMAGE, f(2, 4, 2) | (2, 2), (3, 3)
MaxUnpool2D: f(2, 4, 4, 4), j(2, 4, 4, 4) | 2, 2
MaxUnpool2DExt: f(2, 4, 4, 4), j(2, 4, 4, 4), (2, 2), (2, 2), (0, 0), None
MaxUnpool3D: f(1, 2, 2, 2, 2), j(1, 2, 2, 2, 2) | 2, 2
ResizeBilinearV2 ResizeNearestNeighborV2 ResizeBicubic: IMAGE, (16, 16)
ResizeNearestNeighbor: IMAGE | (16, 16) ; ResizeLinear1D: SIGNAL, (16,) ; ResizeV2: IMAGE, f(8), f(4), j(4)
UpsampleBicubic2D UpsampleBilinear2D: IMAGE, (16, 16), None, False ; UpsampleNearest2D: IMAGE, (16, 16), None
UpsampleLinear1D: SIGNAL, (16,), None, False ; UpsampleNearest1D: SIGNAL, (16,), None
UpsampleNearest3D UpsampleTrilinear3D: VOLUME, (8, 8, 8), None ; GridSampler2D: IMAGE, f(2, 3, 3, 2)
GridSampler3D: VOLUME, f(1, 3, 3, 3, 3) ; AffineGrid: f(2, 2, 3), (2, 3, 4, 4)
ROIAlign: IMAGE, f(1, 5) | 2, 2, 0.5, 2 ; CropAndResize: f(1, 8, 8, 3), f(1, 4), i(1), (4, 4)
NMSWithMask: f(4, 5) | 0.5 ; LRN: IMAGE
# norms
BatchNorm: IMAGE, f(4), f(4), f(4), f(4) ; BatchNormExt: IMAGE, f(4), f(4), f(4), f(4), False, 0.1, 0.1
InstanceNorm: IMAGE, state(4), state(4), state(4), state(4) ; LayerNorm LayerNormV3: X, f(3), f(3)
LayerNormExt: X, (3,), f(3), f(3), 0.1 ; GroupNorm: IMAGE, 2, f(4), f(4), 0.1 ; RmsNorm: X, f(3)
AddRmsNorm: X, X, f(3), 0.1 ; AddLayerNormV2: X, X, f(3), f(3), 0.1, True
# losses
SparseSoftmaxCrossEntropyWithLogits: X, i(2) ; NLLLoss: X, i(2), f(3) | "mean"
NLLLoss2d: IMAGE, j(2, 8, 8), f(4), "mean", -100 ; BinaryCrossEntropy: X, X, X | "mean"
BCEWithLogitsLoss: X, X, X, X | "mean" ; MSELossExt L1LossExt: X, X, "mean" ; SmoothL1Loss: X, X
KLDiv: X, X, "mean", False ; SoftMarginLoss: X, X | "mean" ; MultilabelMarginLoss: X, i(2, 3)
MultiMarginLoss: X, j(2), f(3) ; TripletMarginLoss: X, X, X, f() ; CTCLossV2: f(5, 2, 4), i(2, 2), i(2), i(2)
CTCLoss: f(5, 2, 4), j(2, 2), i(2), i(2) ; CrossEntropyLoss: X, j(2), None, "mean", -100, 0.0, 0.0, False
# gradients
GeLUGrad LogSigmoidGrad KLDivLossGrad SigmoidCrossEntropyWithLogitsGrad MaximumGrad MinimumGrad: X, X, X
SmoothL1LossGrad: X, X, X ; HShrinkGrad SoftShrinkGrad LogitGrad DropoutGrad: X, X | 0.5
EluGradExt: X, X, 1.0, False ; GeluGradExt: X, X, "none" ; GluGrad: f(2, 2), f(2, 4) | 1
HardtanhGrad: X, X, 0.0, 1.0 ; LeakyReLUGradExt: X, X, 0.1, False ; PReLUGrad: f(2, 3, 4), f(2, 3, 4), f(3)
SoftplusGradExt: X, X, 1, 20 ; SwigluGrad: f(2, 2), f(2, 4), -1 ; ThresholdGrad: X, X, 0.5
SoftmaxBackward: X, X, 1 ; LogSoftmaxGrad: X, X | 1 ; BiasAddGrad: IMAGE
StridedSliceGrad: f(1, 2), (2, 3), (0, 0), (1, 2), (1, 1) ; SliceGrad: f(1, 2), X, (0, 0), (1, 2)
AdaptiveAvgPool2DGrad: f(2, 4, 2, 2), j(4) ; AdaptiveAvgPool2DGradExt: f(2, 4, 2, 2), IMAGE
AdaptiveAvgPool3DGrad: f(1, 2, 2, 2, 2), i(5) ; AdaptiveMaxPool2DGrad: f(2, 4, 2, 2), IMAGE, j(2, 4, 2, 2)
MaxPoolGrad AvgPoolGrad: IMAGE, f(2, 4, 4, 4), f(2, 4, 4, 4) | 2, 2
AvgPool2DGrad: f(2, 4, 4, 4), IMAGE, (2, 2), (2, 2), (0, 0), False, True, None
AvgPool3DGrad: (1, 2, 4, 4, 4), f(1, 2, 2, 2, 2) | 2, 2
AvgPool3DGradExt: f(1, 2, 2, 2, 2), VOLUME, (2, 2, 2), (2, 2, 2), (0, 0, 0), False, True, None
MaxPool3DGrad: VOLUME, f(1, 2, 2, 2, 2), f(1, 2, 2, 2, 2) | 2, 2
MaxPoolGradWithArgmaxV2: IMAGE, f(2, 4, 4, 4), j(2, 4, 4, 4) | 2, 2
MaxPool3DGradWithArgmax: VOLUME, f(1, 2, 2, 2, 2), j(1, 2, 2, 2, 2) | (2, 2, 2), (2, 2, 2), (0, 0, 0)
MaxPoolGradWithMask: IMAGE, f(2, 4, 4, 4), Tensor((2, 4, 4, 32), "int8") | (2, 2), (2, 2), (0, 0), (1, 1), False
MaxPoolGradWithIndices: IMAGE, f(2, 4, 4, 4), j(2, 4, 4, 4) | (2, 2), (2, 2), (0, 0), (1, 1), False
GatherDGradV2: X, 1, i(2, 3), X ; EmbeddingDenseBackward: f(2, 3, 4), j(2, 3), 5, None, False
BatchNormGrad: IMAGE, IMAGE, f(4), f(4), f(4), f(4)
GroupNormGrad: IMAGE, IMAGE, f(2, 2), f(2, 2), f(4), 2, True, True, True
InstanceNormGrad: IMAGE, IMAGE, state(4), f(8), f(8)
LayerNormGrad LayerNormGradV3: X, X, f(2, 1), f(2, 1), f(3)
LayerNormGradExt: X, X, (3,), f(2, 1), f(2, 1), f(3), f(3), (1, 1, 1) ; RmsNormGrad: X, X, f(2, 1), f(3)
LRNGrad: IMAGE, IMAGE, IMAGE
LSTMGrad: f(5, 2, 4), H, H, f(108, 1, 1), f(5, 2, 3), H, H, f(5, 2, 3), H, H, f(240, 1) | 4, 3, 1, True, False, 0.0
MirrorPadGrad: f(4, 3), j(2, 2) | "REFLECT" ; ReflectionPad1DGrad: f(2, 4, 10), SIGNAL, (1, 1)
ReflectionPad2DGrad ReplicationPad2DGrad: f(2, 4, 10, 10), IMAGE, (1, 1, 1, 1)
ResizeBilinearGrad ResizeBicubicGrad: f(2, 4, 16, 16), IMAGE
ResizeNearestNeighborV2Grad: f(2, 4, 16, 16), (8, 8)
UpsampleNearest2DGrad: f(2, 4, 16, 16), (2, 4, 8, 8), (16, 16), None
UpsampleBilinear2DGrad: f(2, 4, 16, 16), (2, 4, 8, 8), (16, 16), None, False
GridSampler2DGrad: f(2, 4, 3, 3), IMAGE, f(2, 3, 3, 2) ; BinaryCrossEntropyGrad: X, X, f(), X | "mean"
BinaryCrossEntropyWithLogitsBackward: f(), X, X, X, X, "mean"
CTCLossV2Grad: f(2), f(5, 2, 4), i(2, 2), i(2), i(2), f(2), f(2, 5, 5) | 0, "none"
CrossEntropyLossGrad: f(), X, j(2), None, None, None, "mean", -100, 0.0, 0.0
KLDivGrad: f(), X, X, "mean", False ; L1LossBackwardExt MSELossGradExt: f(), X, X, "mean"
NLLLossGrad: X, f(), i(2), f(3), f() | "mean" ; SoftMarginLossGrad: X, X, f() | "mean"
MedianGrad: f(), X, f(), j() | True ; CholeskyGrad: f(3, 3), f(3, 3) ; UniqueGrad: (f(3), i(3)), (f(3), i(3))
TraceGrad: f(), j(2)
# ascend
FlashAttentionScore: HEADS, HEADS, HEADS, f(1, 2, 16, 16), None, None, MASK, *none(3) | 2, input_layout="BNSD"
PromptFlashAttention: HEADS, HEADS, HEADS, MASK, *none(8) | 2, input_layout="BNSD"
IncreFlashAttention: f(1, 2, 1, 32), (HEADS,), (HEADS,), *none(12) | 2, "BNSD"
FusedInferAttentionScore: HEADS, (HEADS,), (HEADS,), *none(21) | 2, input_layout="BNSD"
ApplyRotaryPosEmb: f(4, 32), f(4, 32), f(4, 32), f(4, 32), i(4) | 0
RotaryPositionEmbedding: HEADS, f(1, 1, 16, 32), f(1, 1, 16, 32), 0
RotaryPositionEmbeddingGrad: HEADS, f(1, 1, 16, 32), f(1, 1, 16, 32), HEADS, 0
MoeInitRouting: f(4, 8), i(4, 2), i(4, 2), 4
MoeFinalizeRouting: f(8, 8), f(4, 8), None, f(2, 8), f(4, 2), i(8), i(4, 2)
MoeGatingTopKSoftmax: f(4, 8), None, 2 ; MoeTokenPermute: f(4, 8), j(4, 2), None, False
InnerMoeTokenUnpermute: f(8, 8), i(8), f(4, 2), False, None
# writes
Assign AssignAdd AssignSub: STATE, X ; InplaceMul InplaceDiv: X, X
ScatterUpdate ScatterAdd ScatterSub ScatterMax ScatterMin: STATE, i(2), X
ScatterNdUpdate ScatterNdAdd ScatterNdSub: STATE, i(2, 1), X ; ApplyMomentum: STATE, STATE, f(), X, f()
Adam: STATE, STATE, STATE, f(), f(), f(), f(), f(), f(), X
AdamWeightDecay ApplyAdaMax: STATE, STATE, STATE, f(), f(), f(), f(), f(), X
SGD: STATE, X, f(), STATE, f(), STATE ; ApplyAdagrad: STATE, STATE, f(), X
ApplyAdagradV2: STATE, STATE, f(), X | 0.1 ; ApplyAdadelta: STATE, STATE, STATE, f(), f(), f(), X
ApplyRMSProp: STATE, STATE, STATE, f(), X, 0.9, 0.9, 0.1 ; ApplyFtrl: STATE, STATE, STATE, X, f(), f(), f(), f()
ApplyGradientDescent: STATE, f(), X ; ApplyProximalAdagrad: STATE, STATE, f(), f(), f(), X
IndexAdd: STATE, i(2), X | 0 ; InplaceAddExt InplaceSubExt: X, X, 1
InplaceMuls InplaceDivs: X, 2.0 ; InplaceAddsExt InplaceSubScalar: X, 2.0, 1 ; InplaceReLU: X
InplaceFillScalar: STATE, 2.0 ; InplaceZero: STATE
InplaceCopy: STATE, X, False ; InplaceMaskedFillTensor: STATE, b(2, 3), f()
InplaceMaskedFillScalar: STATE, b(2, 3), 0.5
"""


def _cases() -> dict[str, Case]:
    found: dict[str, Case] = {}
    for line in TABLE.splitlines():
        for entry in line.split(" ; ") if not line.startswith("#") else ():
            names, _, call = entry.partition(": ")
            operands, _, init = call.partition(" | ")
            given = eval(f"(lambda *a: a)({operands})")  # noqa: S307  (the table above, nothing else)
            arguments, options = eval(f"(lambda *a, **k: (a, k))({init})")  # noqa: S307
            for name in names.split():
                if name in found:
                    raise ValueError(f"two calls of {name}")
                found[name] = Case(given, arguments, options)
    return found


CASES = _cases()
