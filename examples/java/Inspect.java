import com.cutaway.v1.Attribution;
import com.cutaway.v1.AttributionRequest;
import com.cutaway.v1.Capture;
import com.cutaway.v1.CaptureRequest;
import com.cutaway.v1.InputGradientRequest;
import com.cutaway.v1.InspectRequest;
import com.cutaway.v1.InspectResponse;
import com.cutaway.v1.InspectionServiceGrpc;
import com.cutaway.v1.InspectionServiceGrpc.InspectionServiceBlockingStub;
import com.cutaway.v1.IntegratedGradients;
import com.cutaway.v1.ListModelsRequest;
import com.cutaway.v1.PathIntegral;
import com.cutaway.v1.Tensor;
import com.cutaway.v1.TensorInputs;
import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.BadRequest;
import com.google.rpc.ErrorInfo;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.StatusRuntimeException;
import io.grpc.stub.MetadataUtils;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.TimeUnit;

/**
 * A first afternoon with a server: which models there are, and one question about the inside of one of them.
 *
 * <p>{@code java Inspect ADDRESS [MODEL]}; the environment variable CUTAWAY_TOKEN is the caller's token, if the server
 * needs one.
 */
public final class Inspect {
  private static final Metadata.Key<String> AUTHORIZATION =
      Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);
  private static final Metadata.Key<byte[]> DETAILS =
      Metadata.Key.of("grpc-status-details-bin", Metadata.BINARY_BYTE_MARSHALLER);

  private Inspect() {}

  public static void main(String[] arguments) throws InvalidProtocolBufferException {
    if (arguments.length == 0) {
      System.err.println("usage: java Inspect ADDRESS [MODEL]");
      System.exit(2);
    }
    // Beyond this machine, use TlsChannelCredentials.
    ManagedChannel channel =
        Grpc.newChannelBuilder(arguments[0], InsecureChannelCredentials.create())
            .maxInboundMessageSize(256 << 20) // gRPC's own limit is 4 MB
            .build();
    try {
      run(channel, arguments.length > 1 ? arguments[1] : "digits");
    } catch (StatusRuntimeException failure) {
      System.err.println(explain(failure));
      System.exit(1);
    } finally {
      channel.shutdownNow();
    }
  }

  private static void run(ManagedChannel channel, String model) {
    InspectionServiceBlockingStub client =
        InspectionServiceGrpc.newBlockingStub(channel).withDeadlineAfter(1, TimeUnit.MINUTES);
    String token = System.getenv("CUTAWAY_TOKEN");
    if (token != null) {
      Metadata headers = new Metadata();
      headers.put(AUTHORIZATION, "Bearer " + token);
      client = client.withInterceptors(MetadataUtils.newAttachHeadersInterceptor(headers));
    }
    client
        .listModels(ListModelsRequest.getDefaultInstance())
        .getModelsList()
        .forEach(each -> System.out.println("model " + each.getModel() + " " + each.getVersion()));
    show(client.inspect(question(model)));
  }

  /** Asks for the prediction, what a layer returns, the gradient at the image, and an explanation with its check. */
  private static InspectRequest question(String model) {
    float[] image = new float[64];
    for (int index = 0; index < image.length; index++) {
      image[index] = (index % 17) / 16f;
    }
    TensorInputs inputs =
        TensorInputs.newBuilder().putByName("image", Tensors.of(image, List.of(1L, 1L, 8L, 8L))).build();
    PathIntegral path = PathIntegral.newBuilder().setNSteps(32).build();
    return InspectRequest.newBuilder()
        .setModel(model)
        .setTensors(inputs)
        .addCaptures(CaptureRequest.newBuilder().setModule("conv2"))
        .setInputGradients(InputGradientRequest.getDefaultInstance())
        .addAttributions(
            AttributionRequest.newBuilder().setIntegratedGradients(IntegratedGradients.newBuilder().setPath(path)))
        .build();
  }

  private static void show(InspectResponse reply) {
    reply
        .getPredictions()
        .getClassesList()
        .forEach(each -> System.out.println("class " + each.getLabel() + " " + each.getProbability()));
    for (Capture capture : reply.getCapturesList()) {
      capture.getCalls(0).getLeavesList().forEach(leaf -> line("capture " + capture.getModule(), leaf.getTensor()));
    }
    reply.getInputGradientsList().forEach(each -> line("gradient " + each.getName(), each.getTensor()));
    for (Attribution attribution : reply.getAttributionsList()) {
      attribution
          .getValuesList()
          .forEach(each -> line(attribution.getMethod() + " " + each.getName(), each.getTensor()));
      attribution.getChecksList().forEach(check -> System.out.println("verdict " + check.getVerdict()));
    }
  }

  /** Prints the shape of a tensor, and the first of its numbers. */
  private static void line(String name, Tensor tensor) {
    float[] first = Arrays.copyOf(Tensors.numbers(tensor), 4);
    System.out.println(name + " " + tensor.getShapeList() + " " + Arrays.toString(first));
  }

  /** Says what is wrong: the stable reason and the field at fault are in the details of the status. */
  private static String explain(StatusRuntimeException failure) throws InvalidProtocolBufferException {
    StringBuilder text = new StringBuilder(String.valueOf(failure.getStatus().getDescription()));
    byte[] details = failure.getTrailers() == null ? null : failure.getTrailers().get(DETAILS);
    if (details != null) {
      for (Any each : com.google.rpc.Status.parseFrom(details).getDetailsList()) {
        if (each.is(ErrorInfo.class)) {
          text.insert(0, each.unpack(ErrorInfo.class).getReason() + ": ");
        } else if (each.is(BadRequest.class)) {
          each.unpack(BadRequest.class)
              .getFieldViolationsList()
              .forEach(violation -> text.append("\n  at ").append(violation.getField()));
        }
      }
    }
    return text.toString();
  }
}
