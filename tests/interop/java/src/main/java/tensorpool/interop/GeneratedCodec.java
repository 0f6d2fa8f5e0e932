package tensorpool.interop;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import com.google.gson.JsonPrimitive;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import org.agrona.DirectBuffer;
import org.agrona.ExpandableArrayBuffer;
import org.agrona.MutableDirectBuffer;
import org.agrona.concurrent.UnsafeBuffer;
import uk.co.real_logic.sbe.PrimitiveType;
import uk.co.real_logic.sbe.ir.GenerationUtil;
import uk.co.real_logic.sbe.ir.Ir;
import uk.co.real_logic.sbe.ir.Signal;
import uk.co.real_logic.sbe.ir.Token;

/**
 * The generated encoder and decoder of one message, called by reflection.
 *
 * <p>The fields and their order come from sbe-tool's intermediate representation of the schema; the classes that
 * it generated write and read every byte.
 */
final class GeneratedCodec
{
    private static final Map<String, Method> METHODS = new HashMap<>();

    private final String prefix;
    private final String messageName;
    private final boolean hasHeader;
    private final List<Token> body;
    private int decodedLength;

    GeneratedCodec(final Ir ir, final String messageName, final boolean hasHeader)
    {
        this.prefix = ir.applicableNamespace() + ".";
        this.messageName = messageName;
        this.hasHeader = hasHeader;
        final List<Token> tokens = ir.messages().stream()
            .filter((message) -> message.get(0).name().equals(messageName))
            .findFirst()
            .orElseThrow(() -> new IllegalArgumentException("no message " + messageName));
        this.body = tokens.subList(1, tokens.size() - 1);
    }

    byte[] encode(final JsonObject fields) throws ReflectiveOperationException
    {
        final ExpandableArrayBuffer buffer = new ExpandableArrayBuffer();
        final Object encoder = make(messageName + "Encoder");
        if (hasHeader)
        {
            final Object header = make("MessageHeaderEncoder");
            encoder.getClass().getMethod("wrapAndApplyHeader", MutableDirectBuffer.class, int.class, header.getClass())
                .invoke(encoder, buffer, 0, header);
        }
        else
        {
            encoder.getClass().getMethod("wrap", MutableDirectBuffer.class, int.class).invoke(encoder, buffer, 0);
        }
        encodeBlock(encoder, body, fields);
        final byte[] bytes = new byte[(Integer)call(encoder, "limit")];
        buffer.getBytes(0, bytes);
        return bytes;
    }

    JsonObject decode(final byte[] bytes) throws ReflectiveOperationException
    {
        final DirectBuffer buffer = new UnsafeBuffer(bytes);
        final Object decoder = make(messageName + "Decoder");
        if (hasHeader)
        {
            final Object header = make("MessageHeaderDecoder");
            header.getClass().getMethod("wrap", DirectBuffer.class, int.class).invoke(header, buffer, 0);
            final int schemaId = (Integer)call(header, "schemaId");
            if (schemaId != (Integer)call(decoder, "sbeSchemaId"))
            {
                throw new IllegalArgumentException("schema id " + schemaId);
            }
            decoder.getClass().getMethod("wrapAndApplyHeader", DirectBuffer.class, int.class, header.getClass())
                .invoke(decoder, buffer, 0, header);
        }
        else
        {
            decoder.getClass().getMethod("wrap", DirectBuffer.class, int.class, int.class, int.class)
                .invoke(decoder, buffer, 0, call(decoder, "sbeBlockLength"), call(decoder, "sbeSchemaVersion"));
        }
        final JsonObject fields = decodeBlock(decoder, body);
        decodedLength = (Integer)call(decoder, "limit");
        return fields;
    }

    int decodedLength()
    {
        return decodedLength;
    }

    private void encodeBlock(final Object encoder, final List<Token> tokens, final JsonObject values)
        throws ReflectiveOperationException
    {
        final List<Token> fields = new ArrayList<>();
        final List<Token> groups = new ArrayList<>();
        final List<Token> varData = new ArrayList<>();
        collect(tokens, fields, groups, varData);
        int seen = 0;
        for (int i = 0; i < fields.size(); i += fields.get(i).componentTokenCount())
        {
            final Token type = fields.get(i + 1);
            if (!type.isConstantEncoding())
            {
                encodeField(encoder, fields.get(i).name(), type, values.get(fields.get(i).name()));
                seen++;
            }
        }
        for (int i = 0; i < groups.size(); i += groups.get(i).componentTokenCount())
        {
            final String name = groups.get(i).name();
            final JsonArray entries = values.getAsJsonArray(name);
            final Object group = method(encoder, name + "Count", 1).invoke(encoder, entries.size());
            for (final JsonElement entry : entries)
            {
                call(group, "next");
                encodeBlock(group, inside(groups, i), entry.getAsJsonObject());
            }
            seen++;
        }
        for (int i = 0; i < varData.size(); i += varData.get(i).componentTokenCount())
        {
            final String name = varData.get(i).name();
            final byte[] bytes = HexFormat.of().parseHex(values.get(name).getAsString());
            encoder.getClass().getMethod("put" + capital(name), byte[].class, int.class, int.class)
                .invoke(encoder, bytes, 0, bytes.length);
            seen++;
        }
        if (seen != values.size())
        {
            throw new IllegalArgumentException("fields that the schema does not have: " + values.keySet());
        }
    }

    private void encodeField(final Object encoder, final String name, final Token type, final JsonElement value)
        throws ReflectiveOperationException
    {
        if (type.signal() == Signal.BEGIN_ENUM)
        {
            final Method setter = method(encoder, name, 1);
            final String member = value.isJsonNull() ? "NULL_VAL" : value.getAsString();
            @SuppressWarnings({"unchecked", "rawtypes"})
            final Object constant = Enum.valueOf((Class<Enum>)setter.getParameterTypes()[0], member);
            setter.invoke(encoder, constant);
        }
        else if (type.arrayLength() > 1)
        {
            final Method setter = method(encoder, name, int.class, type);
            final JsonArray elements = value.getAsJsonArray();
            for (int i = 0; i < type.arrayLength(); i++)
            {
                setter.invoke(encoder, i, boxed(elements.get(i).getAsString(), setter.getParameterTypes()[1], type));
            }
        }
        else
        {
            final Method setter = method(encoder, name, 1);
            final Object raw = value.isJsonNull() ?
                call(encoder, name + "NullValue") :
                boxed(value.getAsString(), setter.getParameterTypes()[0], type);
            setter.invoke(encoder, raw);
        }
    }

    private JsonObject decodeBlock(final Object decoder, final List<Token> tokens) throws ReflectiveOperationException
    {
        final JsonObject values = new JsonObject();
        final List<Token> fields = new ArrayList<>();
        final List<Token> groups = new ArrayList<>();
        final List<Token> varData = new ArrayList<>();
        collect(tokens, fields, groups, varData);
        for (int i = 0; i < fields.size(); i += fields.get(i).componentTokenCount())
        {
            final Token field = fields.get(i);
            values.add(field.name(), decodeField(decoder, field, fields.get(i + 1)));
        }
        for (int i = 0; i < groups.size(); i += groups.get(i).componentTokenCount())
        {
            final Object group = call(decoder, groups.get(i).name());
            final int count = (Integer)call(group, "count");
            final JsonArray entries = new JsonArray();
            for (int n = 0; n < count; n++)
            {
                call(group, "next");
                entries.add(decodeBlock(group, inside(groups, i)));
            }
            values.add(groups.get(i).name(), entries);
        }
        for (int i = 0; i < varData.size(); i += varData.get(i).componentTokenCount())
        {
            final String name = varData.get(i).name();
            final byte[] bytes = new byte[(Integer)call(decoder, name + "Length")];
            decoder.getClass().getMethod("get" + capital(name), byte[].class, int.class, int.class)
                .invoke(decoder, bytes, 0, bytes.length);
            values.addProperty(name, HexFormat.of().formatHex(bytes));
        }
        return values;
    }

    private JsonElement decodeField(final Object decoder, final Token field, final Token type)
        throws ReflectiveOperationException
    {
        final String name = field.name();
        if (type.signal() == Signal.BEGIN_ENUM)
        {
            final String member = call(decoder, name).toString();
            final boolean isNull = field.isOptionalEncoding() && member.equals("NULL_VAL");
            return isNull ? JsonNull.INSTANCE : new JsonPrimitive(member);
        }
        if (type.arrayLength() > 1)
        {
            final JsonArray elements = new JsonArray();
            final Method getter = decoder.getClass().getMethod(name, int.class);
            for (int i = 0; i < type.arrayLength(); i++)
            {
                elements.add(text(getter.invoke(decoder, i), type));
            }
            return elements;
        }
        final Object value = call(decoder, name);
        if (type.isOptionalEncoding() && value.equals(call(decoder, name + "NullValue")))
        {
            return JsonNull.INSTANCE;
        }
        return new JsonPrimitive(text(value, type));
    }

    private static void collect(
        final List<Token> tokens, final List<Token> fields, final List<Token> groups, final List<Token> varData)
    {
        int i = GenerationUtil.collectFields(tokens, 0, fields);
        i = GenerationUtil.collectGroups(tokens, i, groups);
        GenerationUtil.collectVarData(tokens, i, varData);
    }

    /** Tokens of the entries of a group, without those of the group itself and of its dimensions. */
    private static List<Token> inside(final List<Token> groups, final int index)
    {
        final int dimensions = groups.get(index + 1).componentTokenCount();
        return groups.subList(index + 1 + dimensions, index + groups.get(index).componentTokenCount() - 1);
    }

    private Object make(final String className) throws ReflectiveOperationException
    {
        return Class.forName(prefix + className).getConstructor().newInstance();
    }

    private static Object call(final Object target, final String name) throws ReflectiveOperationException
    {
        return method(target, name, 0).invoke(target);
    }

    private static Method method(final Object target, final String name, final int parameters)
    {
        return METHODS.computeIfAbsent(
            target.getClass().getName() + "." + name + "/" + parameters,
            (key) ->
            {
                for (final Method method : target.getClass().getMethods())
                {
                    if (method.getName().equals(name) && method.getParameterCount() == parameters)
                    {
                        return method;
                    }
                }
                throw new IllegalArgumentException("no method " + key);
            });
    }

    /** The setter of one element of a fixed array: (index, value). */
    private static Method method(
        final Object target, final String name, final Class<?> index, final Token type) throws NoSuchMethodException
    {
        for (final Method method : target.getClass().getMethods())
        {
            final Class<?>[] parameters = method.getParameterTypes();
            if (method.getName().equals(name) && parameters.length == 2 && parameters[0] == index &&
                parameters[1].isPrimitive())
            {
                return method;
            }
        }
        throw new NoSuchMethodException(name + " of " + type.name());
    }

    private static Object boxed(final String text, final Class<?> as, final Token type)
    {
        if (as == long.class)
        {
            return type.encoding().primitiveType() == PrimitiveType.UINT64 ?
                Long.parseUnsignedLong(text) : Long.parseLong(text);
        }
        if (as == int.class)
        {
            return Integer.parseInt(text);
        }
        return as == short.class ? (Object)Short.parseShort(text) : (Object)Byte.parseByte(text);
    }

    private static String text(final Object value, final Token type)
    {
        return type.encoding().primitiveType() == PrimitiveType.UINT64 ?
            Long.toUnsignedString((Long)value) : value.toString();
    }

    private static String capital(final String name)
    {
        return Character.toUpperCase(name.charAt(0)) + name.substring(1);
    }
}
