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
 * Encodes and decodes messages with the codecs that sbe-tool generated, one JSON object per line in both directions.
 *
 * <p>Arguments: the schema files. Requests: {@code {"op": "encode", "schema": "driver-901", "message":
 * "ShmAttachRequest", "header": true, "fields": {...}}} returns {@code {"hex": "..."}}; {@code "op":
 * "decode"} with {@code "hex"} returns {@code {"fields": {...}, "length": n}}. A failure returns
 * {@code {"error": "..."}}.
 */
public final class CodecServer
{
    private static final Gson GSON = new GsonBuilder().serializeNulls().create();

    private CodecServer()
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
            out.println(GSON.toJson(reply(schemas, JsonParser.parseString(line).getAsJsonObject())));
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

    private static JsonObject reply(final Map<String, Ir> schemas, final JsonObject request) throws IOException
    {
        final JsonObject reply = new JsonObject();
        try
        {
            final Ir ir = schemas.get(request.get("schema").getAsString());
            final GeneratedCodec codec = new GeneratedCodec(
                ir, request.get("message").getAsString(), request.get("header").getAsBoolean());
            if (request.get("op").getAsString().equals("encode"))
            {
                reply.addProperty("hex", HexFormat.of().formatHex(codec.encode(request.getAsJsonObject("fields"))));
            }
            else
            {
                final byte[] bytes = HexFormat.of().parseHex(request.get("hex").getAsString());
                reply.add("fields", codec.decode(bytes));
                reply.addProperty("length", codec.decodedLength());
            }
        }
        catch (final InvocationTargetException error)
        {
            reply.addProperty("error", String.valueOf(error.getCause()));
        }
        catch (final ReflectiveOperationException | RuntimeException error)
        {
            reply.addProperty("error", error.toString());
        }
        return reply;
    }
}
