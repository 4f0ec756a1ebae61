// A first afternoon with a server: which models there are, and one question about the inside of one of them.
//
//	go run . ADDRESS [MODEL]
//
// The environment variable CUTAWAY_TOKEN is the caller's token, if the server needs one.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "example/cutawaypb"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: go run . ADDRESS [MODEL]")
		os.Exit(2)
	}
	model := "digits"
	if len(os.Args) > 2 {
		model = os.Args[2]
	}
	if err := run(os.Args[1], model); err != nil {
		fmt.Fprintln(os.Stderr, explain(err))
		os.Exit(1)
	}
}

func run(address, model string) error {
	// Newer versions of grpc-go call it grpc.NewClient, and insecure.NewCredentials(). Beyond this machine, use TLS.
	connection, err := grpc.Dial(address, grpc.WithInsecure(), grpc.WithDefaultCallOptions(
		grpc.MaxCallRecvMsgSize(256<<20))) // gRPC's own limit is 4 MB
	if err != nil {
		return err
	}
	defer connection.Close()
	client := pb.NewInspectionServiceClient(connection)

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if token := os.Getenv("CUTAWAY_TOKEN"); token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}

	served, err := client.ListModels(ctx, &pb.ListModelsRequest{})
	if err != nil {
		return err
	}
	for _, each := range served.Models {
		fmt.Println("model", each.Model, each.Version)
	}

	reply, err := client.Inspect(ctx, question(model))
	if err != nil {
		return err
	}
	return show(reply)
}

// question asks for the prediction, what a layer returns, the gradient at the image, and an explanation with its check.
func question(model string) *pb.InspectRequest {
	image := make([]float32, 64)
	for index := range image {
		image[index] = float32(index%17) / 16
	}
	inputs := map[string]*pb.Tensor{"image": floats(image, 1, 1, 8, 8)}
	path := &pb.PathIntegral{NSteps: 32}
	return &pb.InspectRequest{
		Model:          model,
		Input:          &pb.InspectRequest_Tensors{Tensors: &pb.TensorInputs{ByName: inputs}},
		Captures:       []*pb.CaptureRequest{{Where: &pb.CaptureRequest_Module{Module: "conv2"}}},
		InputGradients: &pb.InputGradientRequest{},
		Attributions: []*pb.AttributionRequest{{
			Method: &pb.AttributionRequest_IntegratedGradients{IntegratedGradients: &pb.IntegratedGradients{Path: path}},
		}},
	}
}

func show(reply *pb.InspectResponse) error {
	for _, class := range reply.Predictions.Classes {
		fmt.Println("class", class.Label, class.Probability)
	}
	for _, capture := range reply.Captures {
		for _, leaf := range capture.Calls[0].Leaves {
			if err := line("capture "+capture.Module, leaf.Tensor); err != nil {
				return err
			}
		}
	}
	for _, gradient := range reply.InputGradients {
		if err := line("gradient "+gradient.Name, gradient.Tensor); err != nil {
			return err
		}
	}
	for _, attribution := range reply.Attributions {
		for _, value := range attribution.Values {
			if err := line(attribution.Method+" "+value.Name, value.Tensor); err != nil {
				return err
			}
		}
		for _, check := range attribution.Checks {
			fmt.Println("verdict", check.Verdict)
		}
	}
	return nil
}

// line prints the shape of a tensor, and the first of its numbers.
func line(name string, tensor *pb.Tensor) error {
	found, err := numbers(tensor)
	if err != nil {
		return err
	}
	fmt.Println(name, tensor.Shape, found[:4])
	return nil
}

// explain says what is wrong: the stable reason and the field at fault are in the details of the status.
func explain(err error) string {
	told := status.Convert(err)
	text := told.Message()
	for _, detail := range told.Details() {
		switch each := detail.(type) {
		case *errdetails.ErrorInfo:
			text = each.Reason + ": " + text
		case *errdetails.BadRequest:
			for _, violation := range each.FieldViolations {
				text += "\n  at " + violation.Field
			}
		}
	}
	return text
}
