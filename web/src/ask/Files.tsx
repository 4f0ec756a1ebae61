/** Files for the model to decode: dropped, pasted or chosen. */

import { useEffect, useState } from "preact/hooks";
import type { Example } from "@cutaway/client";
import { alter, draft } from "../state/asking.js";

type File_ = Exclude<Example, string>;

/** Takes files, each an example. */
export function Files({ mediaTypes }: { mediaTypes: readonly string[] }): preact.JSX.Element {
  const given = draft.value.inputs;
  const files = Array.isArray(given)
    ? (given as readonly Example[]).filter((each): each is File_ => typeof each !== "string")
    : [];
  const put = async (list: FileList | undefined | null): Promise<void> => {
    const examples = [...(list ?? [])].map(async (file) => ({
      data: new Uint8Array(await file.arrayBuffer()),
      mediaType: file.type,
    }));
    if (examples.length) alter({ inputs: await Promise.all(examples) });
  };
  return (
    <div
      class="files"
      onDragOver={(event) => event.preventDefault()}
      onDrop={(event) => {
        event.preventDefault();
        void put(event.dataTransfer?.files);
      }}
      onPaste={({ clipboardData }) => void put(clipboardData?.files)}
    >
      <label>
        <span>Drop files here, paste one, or choose: each is an example</span>
        <input
          type="file"
          multiple
          accept={mediaTypes.join(",")}
          onChange={({ currentTarget }) => void put(currentTarget.files)}
        />
      </label>
      <ul>
        {files.map((file, index) => (
          <li key={index}>
            {file.mediaType.startsWith("image/") && <Picture file={file} number={index + 1} />}
            <span class="muted small">
              {file.mediaType || "file"}, {file.data.length.toLocaleString("en")} bytes
            </span>
          </li>
        ))}
      </ul>
    </div>
  );
}

function Picture({ file, number }: { file: File_; number: number }): preact.JSX.Element {
  const [url, setUrl] = useState("");
  useEffect(() => {
    const made = URL.createObjectURL(new Blob([file.data], { type: file.mediaType }));
    setUrl(made);
    return (): void => URL.revokeObjectURL(made);
  }, [file]);
  return <>{url && <img src={url} alt={`Example ${number}`} />}</>;
}
