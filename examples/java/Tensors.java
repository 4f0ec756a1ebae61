import com.cutaway.v1.DataType;
import com.cutaway.v1.Tensor;
import com.google.protobuf.ByteString;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.List;

/** Tensors of 32-bit numbers as arrays: their bytes are little-endian, the last axis changes fastest. */
final class Tensors {
  private Tensors() {}

  static Tensor of(float[] numbers, List<Long> shape) {
    ByteBuffer data = ByteBuffer.allocate(4 * numbers.length).order(ByteOrder.LITTLE_ENDIAN);
    data.asFloatBuffer().put(numbers);
    return Tensor.newBuilder()
        .setDataType(DataType.DATA_TYPE_FLOAT32)
        .addAllShape(shape)
        .setData(ByteString.copyFrom(data))
        .build();
  }

  static float[] numbers(Tensor tensor) {
    if (tensor.getDataType() != DataType.DATA_TYPE_FLOAT32) {
      throw new IllegalArgumentException(tensor.getDataType() + " is no tensor of 32-bit numbers");
    }
    ByteBuffer data = tensor.getData().asReadOnlyByteBuffer().order(ByteOrder.LITTLE_ENDIAN);
    float[] found = new float[data.remaining() / 4];
    data.asFloatBuffer().get(found);
    return found;
  }
}
