package main

import (
	"encoding/binary"
	"fmt"
	"math"

	pb "example/cutawaypb"
)

// floats returns a tensor of 32-bit numbers: their bytes are little-endian, the last axis changes fastest.
func floats(numbers []float32, shape ...int64) *pb.Tensor {
	data := make([]byte, 4*len(numbers))
	for index, number := range numbers {
		binary.LittleEndian.PutUint32(data[4*index:], math.Float32bits(number))
	}
	return &pb.Tensor{DataType: pb.DataType_DATA_TYPE_FLOAT32, Shape: shape, Data: data}
}

// numbers returns the elements of a tensor of 32-bit numbers.
func numbers(tensor *pb.Tensor) ([]float32, error) {
	if tensor.DataType != pb.DataType_DATA_TYPE_FLOAT32 || len(tensor.Data)%4 != 0 {
		return nil, fmt.Errorf("%v with %d bytes is no tensor of 32-bit numbers", tensor.DataType, len(tensor.Data))
	}
	found := make([]float32, len(tensor.Data)/4)
	for index := range found {
		found[index] = math.Float32frombits(binary.LittleEndian.Uint32(tensor.Data[4*index:]))
	}
	return found, nil
}
