#!/bin/sh
# Environments in which the oracles run the real frameworks: sh tests/oracles/environments.sh FOLDER
# Makes FOLDER/tensorflow (Python 3.11, TensorFlow 2.21, Keras 3, tf_keras), FOLDER/mxnet (Python 3.8, MXNet 1.9.1) and
# FOLDER/torch (Python 3.11, torch 2.13 for the CPU). Apex is on no index: with APEX=CHECKOUT, a clone of NVIDIA/apex
# that has commit e13873de, its Python is put into FOLDER/torch-apex.
# TensorFlow must be the wheel `tensorflow`: tensorflow-cpu registers no GPU kernels, which the pass asks for.
set -e
: "${1:?a folder}"
python3.11 --version
python3.8 --version  # both are there, or this ends here
python3.11 -m venv "$1/tensorflow"
"$1/tensorflow/bin/pip" install tensorflow==2.21.0 tf_keras==2.21.0
python3.8 -m venv "$1/mxnet"
"$1/mxnet/bin/pip" install mxnet==1.9.1 'numpy<1.24'
python3.11 -m venv "$1/torch"
"$1/torch/bin/pip" install torch==2.13.0 onnx onnxscript numpy
if [ -n "$APEX" ]; then
    mkdir -p "$1/torch-apex"
    git -C "$APEX" archive e13873de apex | tar -x -C "$1/torch-apex"
fi
