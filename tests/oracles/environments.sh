#!/bin/sh
# Environments in which the oracles run the real frameworks: sh tests/oracles/environments.sh FOLDER
# Makes FOLDER/tensorflow (Python 3.11, TensorFlow 2.21, Keras 3, tf_keras) and FOLDER/mxnet (Python 3.8, MXNet 1.9.1).
# TensorFlow must be the wheel `tensorflow`: tensorflow-cpu registers no GPU kernels, which the pass asks for.
set -e
: "${1:?a folder}"
python3.11 -m venv "$1/tensorflow"
"$1/tensorflow/bin/pip" install tensorflow==2.21.0 tf_keras==2.21.0
python3.8 -m venv "$1/mxnet"
"$1/mxnet/bin/pip" install mxnet==1.9.1 'numpy<1.24'
