package tensorpool.interop;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.Map;
import uk.co.real_logic.sbe.ir.Ir;
import uk.co.real_logic.sbe.xml.IrGenerator;
import uk.co.real_logic.sbe.xml.ParserOptions;
import uk.co.real_logic.sbe.xml.XmlSchemaParser;

/**
 * Encodes and decodes messages with the codecs that sbe-tool generated, one JSON object a line each way.
 *
 * <p>Arguments: the schema files. Requests: {@code {"op": "encode", "schema": "driver-901", "message":
 * "ShmAttachRequest", "header": true, "fields": {...}}} gives {@code {"hex": "..."}}; {@code "op":
 * "decode"} with {@code "hex"} gives {@code {"fields": {...}, "length": n}}. A failure gives
 * {@code {"error": "..."}}.
 */
public final class Judge
{
    private static final Gson GSON = new GsonBuilder().serializeNulls().create();

    private Judge()
    {
    }

    public static void main(final String[] args) throws Exception
    {
        final Map<String, Ir> schemas = new HashMap<>();
        for (final String arg : args)
        {
            final Path path = Path.of(arg);
            schemas.put(path.getFileName().toString().replace(".xml", ""), read(path));
        }
        final BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        final PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine())
        {
            out.println(GSON.toJson(answer(schemas, JsonParser.parseString(line).getAsJsonObject())));
            out.flush();
        }
    }

    private static Ir read(final Path path) throws Exception
    {
        final ParserOptions options = ParserOptions.builder().stopOnError(true).warningsFatal(true).build();
        try (InputStream in = Files.newInputStream(path))
        {
            return new IrGenerator().generate(XmlSchemaParser.parse(in, options));
        }
    }

    private static JsonObject answer(final Map<String, Ir> schemas, final JsonObject request) throws IOException
    {
        final JsonObject answer = new JsonObject();
        try
        {
            final Ir ir = schemas.get(request.get("schema").getAsString());
            final GeneratedCodec codec = new GeneratedCodec(
                ir, request.get("message").getAsString(), request.get("header").getAsBoolean());
            if (request.get("op").getAsString().equals("encode"))
            {
                answer.addProperty("hex", HexFormat.of().formatHex(codec.encode(request.getAsJsonObject("fields"))));
            }
            else
            {
                final byte[] bytes = HexFormat.of().parseHex(request.get("hex").getAsString());
                answer.add("fields", codec.decode(bytes));
                answer.addProperty("length", codec.decodedLength());
            }
        }
        catch (final InvocationTargetException error)
        {
            answer.addProperty("error", String.valueOf(error.getCause()));
        }
        catch (final ReflectiveOperationException | RuntimeException error)
        {
            answer.addProperty("error", error.toString());
        }
        return answer;
    }
}
